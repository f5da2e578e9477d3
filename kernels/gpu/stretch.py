"""What every item of tree attention comes down to: a tile of query rows over a stretch of KV."""

import triton
import triton.language as tl

from kernels.gpu.early import fetch

_LOG2_E = tl.constexpr(1.4426950408889634)
_ALL = tl.constexpr(2147483647)


@triton.jit
def _soft_cap(scores, CAP: tl.constexpr):
    """CAP · tanh(scores / CAP); where the exponential overflows, the fraction is rightly zero."""
    return CAP * (1 - 2 / (tl.exp(2 * scores / CAP) + 1))


@triton.jit
def attend_stretch(
    q_tile,
    keys,
    values,
    blocks,
    block,
    begin,
    end,
    visible,
    used,
    scale,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Rows of queries over tokens [begin, end) of a piece, of which each sees the first `visible`;
    `block` says where the first tile of tokens lies.

    Returns the mean of the values [ROWS, PADDED] and the logarithm to base 2 of its weight [ROWS],
    -inf for a row that sees nothing.
    """
    n = tl.arange(0, TOKENS)
    d = tl.arange(0, PADDED)
    in_dim = d < DIM
    # What turns a score into the exponent of a power of two.
    unit = scale * _LOG2_E
    if SOFT_CAP > 0:
        unit = _LOG2_E
    stop = tl.minimum(end, tl.max(visible, 0))
    least = tl.min(tl.where(used, visible, _ALL), 0)
    if WINDOW > 0:
        begin = begin + tl.maximum(least - WINDOW - begin, 0) // TOKENS * TOKENS
        block = tl.load(blocks + (begin + n) // BLOCK, mask=begin + n < end, other=0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    # Sums over tokens are matrix products too: those add in one order in tiles of any height.
    total = tl.zeros([ROWS, 16], tl.float32)
    ones = tl.full([TOKENS, 16], 1.0, values.dtype.element_ty)
    mixed = tl.zeros([ROWS, PADDED], tl.float32)
    # Blocks are looked up one tile ahead, so that loads of KV depend on no load of their turn.
    whole = begin
    if SPLIT:
        # Tiles that all rows see whole need no mask; they are most of the work.
        whole = begin + tl.maximum(tl.minimum(stop, least) - begin, 0) // TOKENS * TOKENS
        for start in tl.range(begin, whole, TOKENS, num_stages=STAGES):
            token = start + n
            slot = block * BLOCK + token % BLOCK
            ahead = token + TOKENS
            block = tl.load(blocks + ahead // BLOCK, mask=ahead < end, other=0)
            place = slot[:, None] * DIM + d[None, :]
            if PADDED == DIM:
                k = tl.load(keys + place)
                v = tl.load(values + place)
            else:
                k = tl.load(keys + place, mask=in_dim[None, :], other=0.0)
                v = tl.load(values + place, mask=in_dim[None, :], other=0.0)
            scores = tl.dot(q_tile, tl.trans(k), input_precision=PRECISION)
            if SOFT_CAP > 0:
                scores = _soft_cap(scores * scale, SOFT_CAP)
            higher = tl.maximum(top, tl.max(scores, 1))
            shares = tl.exp2(scores * unit - (higher * unit)[:, None])
            shrink = tl.exp2((top - higher) * unit)
            low = shares.to(v.dtype)
            total = tl.dot(low, ones, total * shrink[:, None], input_precision=PRECISION)
            mixed = tl.dot(low, v, mixed * shrink[:, None], input_precision=PRECISION)
            top = higher
    for start in tl.range(whole, stop, TOKENS, num_stages=STAGES):
        token = start + n
        inside = token < stop
        slot = block * BLOCK + token % BLOCK
        ahead = token + TOKENS
        block = tl.load(blocks + ahead // BLOCK, mask=ahead < end, other=0)
        place = slot[:, None] * DIM + d[None, :]
        readable = inside[:, None] & in_dim[None, :]
        k = tl.load(keys + place, mask=readable, other=0.0)
        v = tl.load(values + place, mask=readable, other=0.0)
        scores = tl.dot(q_tile, tl.trans(k), input_precision=PRECISION)
        if SOFT_CAP > 0:
            scores = _soft_cap(scores * scale, SOFT_CAP)
        seen = (token[None, :] < visible[:, None]) & inside[None, :]
        if WINDOW > 0:
            seen = seen & (token[None, :] >= visible[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen nothing yet has no maximum to subtract.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp2(scores * unit - (base * unit)[:, None])
        shrink = tl.exp2((top - base) * unit)
        low = shares.to(v.dtype)
        total = tl.dot(low, ones, total * shrink[:, None], input_precision=PRECISION)
        mixed = tl.dot(low, v, mixed * shrink[:, None], input_precision=PRECISION)
        top = higher
    weight = tl.max(total, 1)  # all columns are the same
    divisor = tl.where(weight > 0, weight, 1.0)
    return mixed / divisor[:, None], top * unit + tl.log2(divisor)


@triton.jit
def fetch_stretch(
    keys, values, blocks, begin, end, DIM: tl.constexpr, PADDED: tl.constexpr,
    BLOCK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Have the KV of tokens [begin, end) of a piece brought to the cache."""
    LINE: tl.constexpr = 128 // (keys.dtype.element_ty.primitive_bitwidth // 8)
    LINES: tl.constexpr = (PADDED + LINE - 1) // LINE
    n = tl.arange(0, TOKENS)
    part = tl.minimum(tl.arange(0, LINES) * LINE, DIM - 1)
    for start in range(begin, end, TOKENS):
        token = tl.minimum(start + n, end - 1)
        slot = tl.load(blocks + token // BLOCK) * BLOCK + token % BLOCK
        place = slot[:, None] * DIM + part[None, :]
        fetch(keys + place)
        fetch(values + place)
