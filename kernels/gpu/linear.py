"""Matrix products of few rows: as fast as the weights come from memory.

With up to `MOST_ROWS` rows a product does little arithmetic for each weight it reads. Every program
takes a stretch of outputs, and of inputs if there are more processors than stretches; then it
leaves sums in parts, which the next kernel adds up as it reads them. While the kernel before still
runs, a program has its first weights brought to the cache.

The weights are the left side of the product and the rows its right side, because the matrix units
want 64 rows on the left. A row's result does not depend on the others' to the bit.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.early import fetch, let_start, starts_early, take_turn

#: Rows up to which these kernels are faster than the library's.
MOST_ROWS = 64
#: Up to so many rows, smaller tiles of rows leave more room for weights under way.
_FEW_ROWS = 16
#: Inputs of each output whose weights are fetched ahead. With more, one reply of an 8B model took
#: longer: 4.38 ms a step with 256, 4.46 with 512, 5.00 with 2,048 on an H200.
_AHEAD = 128
#: Inputs of a part at least; with fewer, starting and adding up take longer than reading.
_LEAST_INPUTS = 256


@triton.jit(do_not_specialize=["rows"])  # compiled once for all numbers of rows
def _product(
    x,
    weight,
    bias,
    out,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    STRETCH: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Outputs [TILE·i, TILE·(i+1)) over inputs [STRETCH·j, STRETCH·(j+1)) in program (i, j)."""
    n = tl.program_id(0) * TILE + tl.arange(0, TILE)
    first = tl.program_id(1) * STRETCH
    k = tl.arange(0, STEP)
    m = tl.arange(0, ROWS)
    real_n = n < OUTPUTS
    line = weight + n.to(tl.int64) * INPUTS + first
    if EARLY:
        let_start(EARLY)
        # 128 bytes are a line of memory.
        LINE: tl.constexpr = 128 // (weight.dtype.element_ty.primitive_bitwidth // 8)
        ahead = tl.minimum(first + tl.arange(0, AHEAD // LINE) * LINE, INPUTS - 1)
        there = tl.where(real_n, n, 0).to(tl.int64)[:, None] * INPUTS
        fetch(weight + there + ahead[None, :])
        if GATED:
            fetch(weight + OUTPUTS * INPUTS + there + ahead[None, :])
        take_turn(EARLY)
    total = tl.zeros([TILE, ROWS], tl.float32)
    other = tl.zeros([TILE, ROWS], tl.float32)
    for start in tl.range(0, STRETCH, STEP, num_stages=STAGES):
        inside = first + start + k < INPUTS
        wanted = real_n[:, None] & inside[None, :]
        w = tl.load(line[:, None] + (start + k)[None, :], mask=wanted, other=0.0)
        place = m.to(tl.int64)[:, None] * INPUTS + (first + start + k)[None, :]
        rows_tile = tl.load(x + place, mask=(m < rows)[:, None] & inside[None, :], other=0.0)
        right = tl.trans(rows_tile)
        total = tl.dot(w, right, total, input_precision=PRECISION)
        if GATED:
            up = tl.load(
                line[:, None] + OUTPUTS * INPUTS + (start + k)[None, :], mask=wanted, other=0.0
            )
            other = tl.dot(up, right, other, input_precision=PRECISION)
    kind = out.dtype.element_ty
    if GATED:
        gate = total.to(x.dtype.element_ty).to(tl.float32)
        activated = (gate / (1 + tl.exp(-gate))).to(x.dtype.element_ty).to(tl.float32)
        total = activated * other.to(x.dtype.element_ty).to(tl.float32)
    if BIASED:
        here = real_n & (tl.program_id(1) == 0)
        total += tl.load(bias + n, mask=here, other=0.0).to(tl.float32)[:, None]
    part = tl.program_id(1).to(tl.int64) * rows * OUTPUTS
    place = part + m.to(tl.int64)[None, :] * OUTPUTS + n[:, None]
    tl.store(out + place, total.to(kind), mask=real_n[:, None] & (m < rows)[None, :])


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut up.

    Attributes:
        outputs: of one program.
        inputs: that it takes at a time.
        parts: programs that share the inputs of an output.
        warps, stages: of a program, and of its loads in flight.
    """

    outputs: int
    inputs: int
    parts: int
    warps: int
    stages: int


#: Two tiles of weights are under way at once.
_GATED_CUT = Cut(64, 128, 1, 4, 4)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    in_parts: bool = False,
    cut: Cut | None = None,
) -> torch.Tensor:
    """`x` [rows, inputs] times the transpose of `weight` [outputs, inputs], for up to `MOST_ROWS`.

    Args:
        x, weight, bias: of one dtype; `bias` is [outputs].
        in_parts: whether the caller takes sums in parts.
        cut: None takes one that measured well.

    Returns:
        [rows, outputs]; with `in_parts` float32 [parts, rows, outputs], whose sum it is.
    """
    rows, outputs = len(x), len(weight)
    cut = cut or _cut(rows, outputs, x.shape[1], in_parts=in_parts, device=x.device)
    if in_parts:
        out = x.new_empty(cut.parts, rows, outputs, dtype=torch.float32)
    else:
        out = x.new_empty(rows, outputs)
    _launch(x, weight, bias, out, cut, outputs, gated=False)
    return out


def gated_linear(x: torch.Tensor, weight: torch.Tensor, *, cut: Cut | None = None) -> torch.Tensor:
    """silu(x · gateᵀ) · (x · upᵀ) for up to `MOST_ROWS` rows.

    Args:
        x: [rows, inputs].
        weight: [2·outputs, inputs], gate above up.
        cut: None takes one that measured well.

    Returns:
        [rows, outputs].
    """
    outputs = len(weight) // 2
    cut = cut or _GATED_CUT
    out = x.new_empty(len(x), outputs)
    _launch(x, weight, None, out, cut, outputs, gated=True)
    return out


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    cut: Cut,
    outputs: int,
    *,
    gated: bool,
) -> None:
    rows, inputs = x.shape
    early = starts_early(x.device)
    stretch = triton.cdiv(triton.cdiv(inputs, cut.parts), cut.inputs) * cut.inputs
    _product[(triton.cdiv(outputs, cut.outputs), cut.parts)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        rows,
        outputs,
        inputs,
        stretch,
        _FEW_ROWS if rows <= _FEW_ROWS else MOST_ROWS,
        cut.outputs,
        cut.inputs,
        cut.stages,
        _AHEAD,
        gated,
        bias is not None,
        "ieee" if x.dtype == torch.float32 else "tf32",
        early,
        num_warps=cut.warps,
        launch_pdl=early,
    )


def _cut(rows: int, outputs: int, inputs: int, *, in_parts: bool, device: torch.device) -> Cut:
    """What measured well on an H200: no fewer programs than there are processors."""
    processors = (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 1
    )
    enough = 0.9 * processors
    few = rows <= _FEW_ROWS
    tile, parts = (128 if few else 64), 1
    most = max(inputs // _LEAST_INPUTS, 1) if in_parts else 1
    while parts < most and triton.cdiv(outputs, tile) * parts < enough:
        parts *= 2
    while tile > 16 and triton.cdiv(outputs, tile) * parts < enough:
        tile //= 2
    return Cut(tile, 128, parts, 4 if few else 8, 4)
