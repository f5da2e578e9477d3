"""8-bit products are close to exact ones, and integer sums do not depend on batch mates."""

import pytest
import torch

from kernels.cpu import int8
from kernels.cpu.int8 import Int8Gate, Int8Linear
from kernels.reference import silu_gate

pytestmark = pytest.mark.skipif(not int8.available(), reason="the processor has no VNNI")


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 200])
@pytest.mark.parametrize("biased", [False, True])
def test_close_to_the_exact_product(rows: int, biased: bool) -> None:
    weight, x, other = torch.randn(96, 160), torch.randn(rows, 160), torch.randn(rows, 96)
    bias = torch.randn(96) if biased else None
    exact = torch.nn.functional.linear(x, weight, bias)
    linear = Int8Linear(weight, bias)
    assert relative(linear(x.bfloat16()), exact) < 0.02
    assert relative(linear.plus(x.bfloat16(), other.bfloat16()), exact + other) < 0.02
    assert relative(Int8Gate(weight, bias)(x.bfloat16()), silu_gate(exact)) < 0.03


def test_a_row_does_not_depend_on_its_mates() -> None:
    x = torch.randn(64, 576).bfloat16() * torch.logspace(-3, 3, 64)[:, None].bfloat16()
    linear = Int8Linear(torch.randn(960, 576))
    together = linear(x)
    for rows in ([0], [63], [5, 6], list(range(10, 27))):
        assert torch.equal(linear(x[rows]), together[rows])


def test_rows_of_zeros_and_large_values_are_no_trouble() -> None:
    linear = Int8Linear(torch.randn(8, 16))
    x = torch.zeros(2, 16).bfloat16()
    x[1] = 30_000
    assert torch.isfinite(linear(x)).all()
    assert not linear(x)[0].any()
