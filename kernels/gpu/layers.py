"""The small kernels between matrix products: norms, gate, embedding, rotation with KV write."""

import torch
import triton
import triton.language as tl

from kernels.gpu.early import let_start, starts_early, take_turn

#: Heads that one program of `rope_store` takes.
_HEAD_TILE = 8
#: Columns that one program of `silu_gate` takes.
_GATE_TILE = 2048


@triton.jit
def _summed(pointers, mask, stride, PARTS: tl.constexpr):
    """The sum of what stands there in parts, which follow one another `stride` apart."""
    value = tl.load(pointers, mask=mask, other=0.0)
    for part in tl.static_range(1, PARTS):
        value += tl.load(pointers + part * stride, mask=mask, other=0.0)
    return value


@triton.jit
def _rms_norm(
    x,
    residual,
    weight,
    out,
    eps,
    stride,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ADD: tl.constexpr,
    EARLY: tl.constexpr,
):
    let_start(EARLY)
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, PADDED)
    real = column < WIDTH
    gain = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    take_turn(EARLY)
    value = _summed(x + row + column, real, stride, PARTS)
    if ADD:
        before = tl.load(residual + row + column, mask=real, other=0.0)
        value = (value.to(tl.float32) + before.to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(residual + row + column, value, mask=real)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    normed = (wide * scale).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row + column, (normed * gain).to(out.dtype.element_ty), mask=real)


@triton.jit
def _silu_gate(gate_up, out, WIDTH: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr):
    let_start(EARLY)
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = column < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + column, mask=real, other=0.0)
    activated = (gate / (1 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(
        out + row * WIDTH + column,
        (activated * up.to(tl.float32)).to(out.dtype.element_ty),
        mask=real,
    )


@triton.jit
def _embed(ids, drawn, table, out, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr):
    let_start(EARLY)
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(ids + row)
    if token < 0:
        token = tl.load(drawn - 1 - token)
    column = tl.arange(0, PADDED)
    real = column < WIDTH
    value = tl.load(table + token.to(tl.int64) * WIDTH + column, mask=real)
    tl.store(out + row * WIDTH + column, value, mask=real)


@triton.jit
def _rope_store(
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    positions,
    piece_start,
    piece_blocks,
    blocks,
    q,
    keys,
    values,
    eps,
    stride,
    head_stride,
    PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    NORMED: tl.constexpr,
    EARLY: tl.constexpr,
):
    let_start(EARLY)
    HALF: tl.constexpr = DIM // 2
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    d = tl.arange(0, PADDED)
    position = tl.load(positions + row)
    token = position - tl.load(piece_start + row)
    block = tl.load(blocks + tl.load(piece_blocks + row) + token // BLOCK)
    slot = block.to(tl.int64) * BLOCK + token % BLOCK
    angle = position.to(tl.int64) * HALF + d
    c = tl.load(cos + angle, mask=d < HALF, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=d < HALF, other=0.0)[None, :]
    take_turn(EARLY)

    real = (head < HEADS + 2 * KV_HEADS)[:, None] & (d < HALF)[None, :]
    place = (row * (HEADS + 2 * KV_HEADS) + head[:, None]) * DIM + d[None, :]
    low = _summed(qkv + place, real, stride, PARTS)
    high = _summed(qkv + place + HALF, real, stride, PARTS)
    is_q = (head < HEADS)[:, None]
    is_v = (head >= HEADS + KV_HEADS)[:, None]
    first, second = low.to(tl.float32), high.to(tl.float32)
    if NORMED:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = tl.rsqrt(squares / DIM + eps)[:, None]
        half = (d < HALF)[None, :]
        low_gain = tl.where(
            is_q,
            tl.load(q_weight + d[None, :], mask=half, other=0.0).to(tl.float32),
            tl.load(k_weight + d[None, :], mask=half, other=0.0).to(tl.float32),
        )
        high_gain = tl.where(
            is_q,
            tl.load(q_weight + HALF + d[None, :], mask=half, other=0.0).to(tl.float32),
            tl.load(k_weight + HALF + d[None, :], mask=half, other=0.0).to(tl.float32),
        )
        kind = q.dtype.element_ty
        first = ((first * scale).to(kind).to(tl.float32) * low_gain).to(kind).to(tl.float32)
        second = ((second * scale).to(kind).to(tl.float32) * high_gain).to(kind).to(tl.float32)
    turned_low = tl.where(is_v, low.to(tl.float32), first * c - second * s)
    turned_high = tl.where(is_v, high.to(tl.float32), second * c + first * s)

    to_q = (row * HEADS + head[:, None]) * DIM + d[None, :]
    tl.store(q + to_q, turned_low.to(q.dtype.element_ty), mask=real & is_q)
    tl.store(q + to_q + HALF, turned_high.to(q.dtype.element_ty), mask=real & is_q)
    kind = keys.dtype.element_ty
    is_k = real & (head >= HEADS)[:, None] & (head < HEADS + KV_HEADS)[:, None]
    to_k = (head - HEADS).to(tl.int64)[:, None] * head_stride + slot * DIM + d[None, :]
    tl.store(keys + to_k, turned_low.to(kind), mask=is_k)
    tl.store(keys + to_k + HALF, turned_high.to(kind), mask=is_k)
    to_v = (head - HEADS - KV_HEADS).to(tl.int64)[:, None] * head_stride + slot * DIM + d[None, :]
    tl.store(values + to_v, turned_low.to(kind), mask=real & is_v)
    tl.store(values + to_v + HALF, turned_high.to(kind), mask=real & is_v)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`kernels.reference.rms_norm` of `x` [rows, width]."""
    out = torch.empty_like(x)
    _launch_norm(x, x, weight, out, eps, add=False)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add `x` to `residual` in place, both [rows, width]; the norm of the sum.

    `x` may be float32 [parts, rows, width], see `kernels.gpu.linear`.
    """
    out = torch.empty_like(residual)
    _launch_norm(x, residual, weight, out, eps, add=True)
    return out


def _launch_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
    *,
    add: bool,
) -> None:
    rows, width = residual.shape
    padded, early = triton.next_power_of_2(width), starts_early(x.device)
    _rms_norm[(rows,)](
        x,
        residual,
        weight,
        out,
        eps,
        rows * width,
        x.numel() // residual.numel(),
        width,
        padded,
        add,
        early,
        num_warps=8 if padded > 2048 else 4,
        launch_pdl=early,
    )


def silu_gate(gate_up: torch.Tensor) -> torch.Tensor:
    """`kernels.reference.silu_gate` of `gate_up` [rows, 2·width]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    tile, early = min(_GATE_TILE, triton.next_power_of_2(width)), starts_early(out.device)
    grid = (rows, triton.cdiv(width, tile))
    _silu_gate[grid](gate_up, out, width, tile, early, num_warps=4, launch_pdl=early)
    return out


def embed(ids: torch.Tensor, drawn: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of `table` [vocab, width] for `ids` int32 [rows].

    A negative id stands for a token of the step before, which the host may not know yet: -1 is
    the first of `drawn` (int32), -2 the second, and so on.
    """
    width = table.shape[1]
    out = table.new_empty(len(ids), width)
    padded, early = triton.next_power_of_2(width), starts_early(out.device)
    _embed[(len(ids),)](ids, drawn, table, out, width, padded, early, num_warps=4, launch_pdl=early)
    return out


def rope_store(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    piece_start: torch.Tensor,
    piece_blocks: torch.Tensor,
    blocks: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    heads: int,
    block_size: int,
    head_norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Rotate Q and K, write K and V to the cache, return Q [rows, heads, dim].

    Args:
        qkv: [rows, (heads + 2·kv_heads)·dim], or float32 in parts, see `kernels.gpu.linear`.
        rotation: cosines and sines, float32 [positions, dim/2].
        positions, piece_start, piece_blocks: int32 [rows], see `kernels.tree_work.Work`.
        blocks: int32, where `piece_blocks` points to.
        keys, values: [kv_heads, slots, dim], one layer of the cache.
        heads: query heads.
        block_size: tokens per block.
        head_norms: weights [dim] by which each head of Q and of K is normalised first.
        eps: of those norms.
    """
    kv_heads, _, dim = keys.shape
    rows, total = len(positions), heads + 2 * kv_heads
    q = keys.new_empty(rows, heads, dim)
    q_weight, k_weight = head_norms or (qkv, qkv)
    early = starts_early(q.device)
    _rope_store[(rows, triton.cdiv(total, _HEAD_TILE))](
        qkv,
        q_weight,
        k_weight,
        *rotation,
        positions,
        piece_start,
        piece_blocks,
        blocks,
        q,
        keys,
        values,
        eps,
        rows * total * dim,
        keys.stride(0),
        qkv.numel() // (rows * total * dim),
        heads,
        kv_heads,
        dim,
        max(8, triton.next_power_of_2(dim // 2)),
        block_size,
        _HEAD_TILE,
        head_norms is not None,
        early,
        num_warps=4,
        launch_pdl=early,
    )
    return q
