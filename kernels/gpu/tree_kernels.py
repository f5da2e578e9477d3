"""The three kernels of tree attention; see `kernels.gpu.tree_attention`."""

import triton
import triton.language as tl

from kernels.gpu.early import take_turn

_LOG2_E = tl.constexpr(1.4426950408889634)
_ALL = tl.constexpr(2147483647)


@triton.jit
def _soft_cap(scores, CAP: tl.constexpr):
    """CAP · tanh(scores / CAP); where the exponential overflows, the fraction is rightly zero."""
    return CAP * (1 - 2 / (tl.exp(2 * scores / CAP) + 1))


@triton.jit
def _stretch(
    q_tile,
    keys,
    values,
    blocks,
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
    """Rows of queries over tokens [begin, end) of a piece, of which each sees the first `visible`.

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
    top = tl.full([ROWS], float("-inf"), tl.float32)
    # Sums over tokens are matrix products too: those add in one order in tiles of any height.
    total = tl.zeros([ROWS, 16], tl.float32)
    ones = tl.full([TOKENS, 16], 1.0, values.dtype.element_ty)
    mixed = tl.zeros([ROWS, PADDED], tl.float32)
    # Blocks are looked up one tile ahead, so that loads of KV depend on no load of their turn.
    block = tl.load(blocks + (begin + n) // BLOCK, mask=begin + n < end, other=0)
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
def _shares(top, weight):
    """What two means count for in their common mean, and the higher of their weights.

    A mean of weight -inf counts for nothing.
    """
    higher = tl.maximum(top, weight)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    return tl.exp2(top - base), tl.exp2(weight - base), higher


@triton.jit
def attend(
    q,
    keys,
    values,
    partials,
    weights,
    positions,
    rows,
    blocks,
    items,
    count,
    scale,
    head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
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
    EARLY: tl.constexpr,
):
    """Partial attention of each item. One program takes every n-th (item, KV head)."""
    take_turn(EARLY)
    m = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    in_dim = d < DIM
    member = m // GROUP
    for work in range(tl.program_id(0), tl.load(count) * KV_HEADS, tl.num_programs(0)):
        item = items + (work // KV_HEADS) * 8
        head = work % KV_HEADS
        first_row = tl.load(item)
        size = tl.load(item + 1)
        first_block = tl.load(item + 2)
        piece_start = tl.load(item + 3)
        begin = tl.load(item + 4)
        end = tl.load(item + 5)
        first_part = tl.load(item + 6)
        only_row = tl.load(item + 7)

        query_head = head * GROUP + m % GROUP
        used = member < size
        row = tl.load(rows + first_row + member, mask=used, other=0).to(tl.int64)
        # How many of the piece's tokens each row may see; KV is in order of position.
        if only_row >= 0:  # spares short items one of the loads that wait for each other
            visible = tl.where(used, tl.load(positions + only_row) + 1 - piece_start, 0)
        else:
            visible = tl.load(positions + row, mask=used, other=-1) + 1 - piece_start
            visible = tl.where(used, visible, 0)
        query = (row * (KV_HEADS * GROUP) + query_head) * DIM
        reading = used[:, None] & in_dim[None, :]
        q_tile = tl.load(q + query[:, None] + d[None, :], mask=reading, other=0.0)
        mean, weight = _stretch(
            q_tile,
            keys + head.to(tl.int64) * head_stride,
            values + head.to(tl.int64) * head_stride,
            blocks + first_block,
            begin,
            end,
            visible,
            used,
            scale,
            DIM,
            PADDED,
            BLOCK,
            ROWS,
            TOKENS,
            WINDOW,
            SOFT_CAP,
            PRECISION,
            STAGES,
            SPLIT,
        )
        part = (first_part + member).to(tl.int64) * (KV_HEADS * GROUP) + query_head
        tl.store(weights + part, weight, mask=used)
        tl.store(partials + part[:, None] * DIM + d[None, :], mean, mask=reading)


@triton.jit
def read(
    q,
    keys,
    values,
    out,
    positions,
    blocks,
    links,
    items,
    count,
    scale,
    head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
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
    EARLY: tl.constexpr,
):
    """Attention of each reading item over its whole chain, added up as `merge` does it."""
    take_turn(EARLY)
    m = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    in_dim = d < DIM
    member = m // GROUP
    for work in range(tl.program_id(0), tl.load(count) * KV_HEADS, tl.num_programs(0)):
        item = items + (work // KV_HEADS) * 4
        head = work % KV_HEADS
        first_row = tl.load(item)
        size = tl.load(item + 1)
        link = links + tl.load(item + 2) * 3
        used = member < size
        row = (first_row + member).to(tl.int64)
        position = tl.load(positions + row, mask=used, other=-1)
        query = (row * (KV_HEADS * GROUP) + head * GROUP + m % GROUP) * DIM
        place = query[:, None] + d[None, :]
        reading = used[:, None] & in_dim[None, :]
        q_tile = tl.load(q + place, mask=reading, other=0.0)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, PADDED], tl.float32)
        for number in range(tl.load(item + 3)):
            mean, weight = _stretch(
                q_tile,
                keys + head.to(tl.int64) * head_stride,
                values + head.to(tl.int64) * head_stride,
                blocks + tl.load(link + number * 3),
                0,
                tl.load(link + number * 3 + 2),
                tl.where(used, position + 1 - tl.load(link + number * 3 + 1), 0),
                used,
                scale,
                DIM,
                PADDED,
                BLOCK,
                ROWS,
                TOKENS,
                WINDOW,
                SOFT_CAP,
                PRECISION,
                STAGES,
                SPLIT,
            )
            before, after, top = _shares(top, weight)
            total = tl.fma(total, before, after)
            mixed = tl.fma(mean, after[:, None], mixed * before[:, None])
        result = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=reading)


@triton.jit
def merge(
    partials,
    weights,
    merged,
    parts,
    part_first,
    part_count,
    out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    TILE: tl.constexpr,
    MERGED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One row's partials of some heads, added up in order. A row without partials becomes zero."""
    take_turn(EARLY)
    row = tl.load(merged + tl.program_id(0)).to(tl.int64)
    if row < 0:
        return
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    d = tl.arange(0, PADDED)
    real = (head < HEADS)[:, None] & (d < DIM)[None, :]
    first = tl.load(part_first + row)
    count = tl.load(part_count + row)
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, PADDED], tl.float32)
    for start in range(0, count, MERGED):
        # Unrolled, so that all loads are under way before the first is needed.
        for number in tl.static_range(MERGED):
            there = start + number < count
            part = tl.load(parts + first + start + number, mask=there, other=0).to(tl.int64)
            place = part * HEADS + head
            weight = tl.load(weights + place, mask=there & (head < HEADS), other=float("-inf"))
            # A stretch of which a row sees nothing left weight -inf, and a mean of zero.
            at = place[:, None] * DIM + d[None, :]
            mean = tl.load(partials + at, mask=there & real, other=0.0)
            before, after, top = _shares(top, weight)
            total = tl.fma(total, before, after)
            mixed = tl.fma(mean, after[:, None], mixed * before[:, None])
    result = mixed / tl.where(total > 0, total, 1.0)[:, None]
    place = (row * HEADS + head)[:, None] * DIM + d[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=real)
