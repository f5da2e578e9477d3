"""The three kernels of tree attention; see `kernels.gpu.tree_attention`."""

import triton
import triton.language as tl

from kernels.gpu.early import let_start, take_turn
from kernels.gpu.stretch import attend_stretch, fetch_stretch


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
    """Partial attention of each item. One program takes every n-th (item, KV head).

    What an item is, whose rows it has and where its KV begins is looked up while the one before is
    computed, so that its loads of KV start at once.
    """
    let_start(EARLY)
    m = tl.arange(0, ROWS)
    n = tl.arange(0, TOKENS)
    d = tl.arange(0, PADDED)
    in_dim = d < DIM
    member = m // GROUP
    step = tl.num_programs(0)
    work = tl.program_id(0)
    last = tl.load(count) * KV_HEADS
    item = items + (work // KV_HEADS) * 7
    following = items + ((work + step) // KV_HEADS) * 7
    size = tl.load(item + 1, mask=work < last, other=0)
    first_block = tl.load(item + 2, mask=work < last, other=0)
    begin = tl.load(item + 4, mask=work < last, other=0)
    end = tl.load(item + 5, mask=work < last, other=0)
    first_row = tl.load(item, mask=work < last, other=0)
    row = tl.load(rows + first_row + member, mask=member < size, other=0)
    block = tl.load(blocks + first_block + (begin + n) // BLOCK, mask=begin + n < end, other=0)
    if EARLY:
        # With no item but these, all that they need has room in the cache.
        stop = tl.where(last <= step, end, begin)
        place = (work % KV_HEADS).to(tl.int64) * head_stride
        fetch_stretch(
            keys + place,
            values + place,
            blocks + first_block,
            begin,
            stop,
            DIM,
            PADDED,
            BLOCK,
            TOKENS,
        )
    take_turn(EARLY)
    while work < last:
        piece_start = tl.load(item + 3)
        first_part = tl.load(item + 6)
        used = member < size
        # How many of the piece's tokens each row may see; KV is in order of position.
        visible = tl.load(positions + row, mask=used, other=-1) + 1 - piece_start
        visible = tl.where(used, visible, 0)
        head = work % KV_HEADS
        query_head = head * GROUP + m % GROUP
        query = (row.to(tl.int64) * (KV_HEADS * GROUP) + query_head) * DIM
        reading = used[:, None] & in_dim[None, :]
        q_tile = tl.load(q + query[:, None] + d[None, :], mask=reading, other=0.0)

        more = work + step < last
        next_size = tl.load(following + 1, mask=more, other=0)
        next_row = tl.load(following, mask=more, other=0) + member
        next_block = tl.load(following + 2, mask=more, other=0)
        next_begin = tl.load(following + 4, mask=more, other=0)
        next_end = tl.load(following + 5, mask=more, other=0)

        mean, weight = attend_stretch(
            q_tile,
            keys + head.to(tl.int64) * head_stride,
            values + head.to(tl.int64) * head_stride,
            blocks + first_block,
            block,
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
        item, following = following, items + ((work + 2 * step) // KV_HEADS) * 7
        size, first_block, begin, end = next_size, next_block, next_begin, next_end
        row = tl.load(rows + next_row, mask=member < size, other=0)
        token = begin + n
        block = tl.load(blocks + first_block + token // BLOCK, mask=token < end, other=0)

        part = (first_part + member).to(tl.int64) * (KV_HEADS * GROUP) + query_head
        tl.store(weights + part, weight, mask=used)
        tl.store(partials + part[:, None] * DIM + d[None, :], mean, mask=reading)
        work += step


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
    let_start(EARLY)
    m = tl.arange(0, ROWS)
    n = tl.arange(0, TOKENS)
    d = tl.arange(0, PADDED)
    in_dim = d < DIM
    member = m // GROUP
    take_turn(EARLY)
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
            piece = blocks + tl.load(link + number * 3)
            length = tl.load(link + number * 3 + 2)
            mean, weight = attend_stretch(
                q_tile,
                keys + head.to(tl.int64) * head_stride,
                values + head.to(tl.int64) * head_stride,
                piece,
                tl.load(piece + n // BLOCK, mask=n < length, other=0),
                0,
                length,
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
    let_start(EARLY)
    row = tl.load(merged + tl.program_id(0)).to(tl.int64)
    first = tl.load(part_first + tl.maximum(row, 0))
    count = tl.load(part_count + tl.maximum(row, 0))
    # Whoever comes later waits for this kernel alone: each program has to have waited.
    take_turn(EARLY)
    if row < 0:
        return
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    d = tl.arange(0, PADDED)
    real = (head < HEADS)[:, None] & (d < DIM)[None, :]
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
