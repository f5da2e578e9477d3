"""Packed products equal plain ones, and a row does not depend on the other rows."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from kernels.cpu.linear import PackedGate, PackedLinear
from kernels.reference import silu_gate

SIZES = [(960, 576), (576, 1536), (160, 96), (49, 33)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("packed", [True, False])
def test_equals_plain_linear(
    dtype: torch.dtype, rows: int, columns: int, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packed:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    torch.manual_seed(rows)
    weight, bias = torch.randn(rows, columns).to(dtype) / columns**0.5, torch.randn(rows).to(dtype)
    linear = PackedLinear(weight, bias)
    for count in (1, 5):
        x, other = torch.randn(count, columns).to(dtype), torch.randn(count, rows).to(dtype)
        plain = F.linear(x.float(), weight.float(), bias.float())
        close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(linear(x).float(), plain, **close)
        torch.testing.assert_close(linear.silu(x).float(), F.silu(plain), **close)
        torch.testing.assert_close(linear.plus(x, other).float(), plain + other, **close)
        torch.testing.assert_close(linear.times(x, other).float(), plain * other, **close)


COUNTS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 100, 255, 256)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_a_row_has_the_same_bits_in_any_company(rows: int, columns: int) -> None:
    torch.manual_seed(rows)
    linear = PackedLinear(torch.randn(rows, columns))
    x, other = torch.randn(300, columns), torch.randn(300, rows)
    whole = linear(x), linear.silu(x), linear.plus(x, other), linear.times(x, other)
    for count in COUNTS:
        few, beside = x[7 : 7 + count], other[7 : 7 + count]
        found = linear(few), linear.silu(few), linear.plus(few, beside), linear.times(few, beside)
        for alone, rows_of in zip(found, whole, strict=True):
            assert torch.equal(alone, rows_of[7 : 7 + count]), count


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_in_any_company_a_row_has_the_error_of_rounding(rows: int, columns: int) -> None:
    torch.manual_seed(rows)
    weight = torch.randn(rows, columns).bfloat16()
    x, other = torch.randn(300, columns).bfloat16(), torch.randn(300, rows).bfloat16()
    linear = PackedLinear(weight)
    sums = F.linear(x.double(), weight.double())
    # Half a unit in the last of 8 bits, and what float32 may lose in any order of summing.
    lost = F.linear(x.double().abs(), weight.double().abs()) * columns * 2.0**-24
    for count in COUNTS:
        of = slice(7, 7 + count)
        for found, true, rounded in (
            (linear(x[of]), sums[of], sums[of].abs()),
            (linear.plus(x[of], other[of]), (sums + other)[of], (2 * sums.abs() + other.abs())[of]),
            (linear.times(x[of], other[of]), (sums * other)[of], (sums * other).abs()[of] * 2),
        ):
            slack = lost[of] * other[of].abs().clamp(min=1)
            assert ((found - true).abs() <= rounded * 2.0**-8 + slack).all(), count


def test_a_gated_block_equals_its_definition() -> None:
    torch.manual_seed(0)
    x, gate, up = torch.randn(5, 96), torch.randn(160, 96) / 10, torch.randn(160, 96) / 10
    both = torch.cat((gate, up))
    torch.testing.assert_close(PackedGate(both)(x), silu_gate(x @ both.T))


def test_a_processor_without_kernels_for_bfloat16_computes_all_the_same() -> None:
    program = (
        "import torch; from kernels.cpu.linear import PackedLinear;"
        "x, w = torch.ones(3, 33).bfloat16(), torch.ones(49, 33).bfloat16();"
        "print(PackedLinear(w)(x).float().sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == str(3.0 * 49 * 33), done.stderr
