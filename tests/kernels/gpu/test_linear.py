"""Products of few rows equal plain products, however they are cut up."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from kernels import reference
from kernels.gpu.layers import add_rms_norm
from kernels.gpu.linear import MOST_ROWS, Cut, gated_linear, linear

CUTS = (None, Cut(16, 32, 1, 4, 1), Cut(64, 32, 4, 4, 2))


def near(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    error = (found.double().cpu() - wanted.cpu()).norm() / wanted.norm().cpu()
    assert error < (1e-6 if dtype == torch.float32 else 2e-2)


def random(*shape: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape).to(device, dtype)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 96, 64), (5, 70, 200), (40, 33, 100)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
)
def test_products(
    dtype: torch.dtype, rows: int, outputs: int, inputs: int, cut: Cut | None, device: torch.device
) -> None:
    x = random(rows, inputs, device=device, dtype=dtype)
    weight = random(outputs, inputs, device=device, dtype=dtype)
    bias = random(outputs, device=device, dtype=dtype)
    wanted = x.double() @ weight.double().T
    if cut is None or cut.parts == 1:
        near(linear(x, weight, cut=cut), wanted, dtype)
    parts = linear(x, weight, bias, in_parts=True, cut=cut)
    assert parts.dtype == torch.float32
    near(parts.sum(0), wanted + bias.double(), dtype)


@pytest.mark.parametrize("cut", [None, Cut(16, 32, 1, 4, 2)])
def test_gated_products(cut: Cut | None, device: torch.device) -> None:
    x = random(5, 72, device=device, dtype=torch.float32)
    weight = random(2 * 48, 72, device=device, dtype=torch.float32)
    wanted = reference.silu_gate(x.double().cpu() @ weight.double().cpu().T)
    near(gated_linear(x, weight, cut=cut), wanted, torch.float32)


def test_norms_add_up_parts(device: torch.device) -> None:
    parts = random(3, 4, 64, device=device, dtype=torch.float32)
    residual = random(4, 64, device=device, dtype=torch.float32)
    weight = random(64, device=device, dtype=torch.float32)
    total = residual + parts.sum(0)
    normed = add_rms_norm(parts, residual, weight, 1e-5)
    torch.testing.assert_close(residual, total)
    torch.testing.assert_close(normed, reference.rms_norm(total, weight, 1e-5))


@pytest.mark.gpu
@pytest.mark.parametrize("inputs", [576, 4096])
def test_a_row_does_not_depend_on_its_batch_mates(inputs: int, device: torch.device) -> None:
    """Bitwise, for any number of rows these products are used for."""
    x = random(MOST_ROWS, inputs, device=device, dtype=torch.bfloat16)
    weight = random(1024, inputs, device=device, dtype=torch.bfloat16)
    whole = linear(x, weight)
    for rows in (1, 2, 16, 17, 33):
        assert torch.equal(linear(x[:rows], weight), whole[:rows])
