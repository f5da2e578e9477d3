"""Products in eight bits, as a GPU makes them, on a CPU."""

import pytest
import torch

import tests.triton_mode  # noqa: F401 - before Triton itself

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from benchmarks.fp8_products import Fp8Gate, Fp8Linear
from kernels.gpu.fp8 import product, quantise_weight


def test_products_are_the_librarys() -> None:
    """Sums in another order, before one rounding to bfloat16."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 64), torch.randn(48, 64), torch.randn(48)
    wanted = product(quantise_weight(x), quantise_weight(weight), torch.bfloat16).float() + bias
    torch.testing.assert_close(Fp8Linear(weight, bias)(x), wanted, rtol=2**-7, atol=1e-3)


def test_the_gate_is_silu_of_the_first_half_times_the_other() -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(3, 32), torch.randn(32, 32)
    opened = Fp8Linear(weight)(x)
    wanted = torch.nn.functional.silu(opened[:, :16]) * opened[:, 16:]
    assert torch.equal(Fp8Gate(weight)(x), wanted)
    assert torch.equal(Fp8Linear(weight).plus(x, x), opened + x)
