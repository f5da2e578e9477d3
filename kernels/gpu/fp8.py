"""Products of weights and rows in 8-bit floating point (E4M3), each row of either with a scale.

A row is divided by its largest number over 448, the largest that the format has, so that nothing
overflows and small rows keep their precision. Products are the library's.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.early import let_start, starts_early, take_turn

KIND = torch.float8_e4m3fn
_LARGEST = tl.constexpr(448.0)
#: A row of zeros has to be divided by something.
_LEAST = tl.constexpr(1e-12)


@dataclass(frozen=True, slots=True)
class Fp8:
    """Rows of numbers.

    Attributes:
        data: E4M3 [rows, width].
        scale: float32 [rows], what each row is to be multiplied by.
    """

    data: torch.Tensor
    scale: torch.Tensor


@triton.jit
def _quantise(
    x, data, scale, WIDTH: tl.constexpr, PADDED: tl.constexpr, GATED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    let_start(EARLY)
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    real = column < WIDTH
    if GATED:
        gate = tl.load(x + row * 2 * WIDTH + column, mask=real, other=0.0).to(tl.float32)
        up = tl.load(x + row * 2 * WIDTH + WIDTH + column, mask=real, other=0.0).to(tl.float32)
        value = gate / (1 + tl.exp(-gate)) * up
    else:
        value = tl.load(x + row * WIDTH + column, mask=real, other=0.0).to(tl.float32)
    unit = tl.maximum(tl.max(tl.abs(value), 0), _LEAST) / _LARGEST
    tl.store(scale + row, unit)
    tl.store(data + row * WIDTH + column, (value / unit).to(data.dtype.element_ty), mask=real)


def quantise(x: torch.Tensor, *, gated: bool = False) -> Fp8:
    """`x` [rows, width] in 8 bits; with `gated`, silu of its left half times its right half."""
    rows, width = x.shape[0], x.shape[1] // (2 if gated else 1)
    data = x.new_empty(rows, width, dtype=KIND)
    scale = x.new_empty(rows, dtype=torch.float32)
    padded, early = triton.next_power_of_2(width), starts_early(x.device)
    _quantise[(rows,)](
        x,
        data,
        scale,
        width,
        padded,
        gated,
        early,
        num_warps=16 if padded > 8192 else 4,
        launch_pdl=early,
    )
    return Fp8(data, scale)


def quantise_weight(weight: torch.Tensor) -> Fp8:
    """A weight [outputs, inputs] in 8 bits, one scale for each output."""
    largest = weight.float().abs().amax(1)
    scale = largest.clamp(min=_LEAST.value) / _LARGEST.value
    return Fp8((weight.float() / scale[:, None]).to(KIND), scale)


def product(x: Fp8, weight: Fp8, dtype: torch.dtype) -> torch.Tensor:
    """`x` [rows, inputs] times the transpose of `weight` [outputs, inputs].

    Inputs and outputs must be multiples of 16.
    """
    return torch._scaled_mm(
        x.data,
        weight.data.t(),
        x.scale[:, None],
        weight.scale[None],
        out_dtype=dtype,
        use_fast_accum=True,
    )
