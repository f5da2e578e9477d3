"""Flash attention over pieces of a paged cache, in tiles of query rows.

A block holds 16 tokens of one head in the layout that dot products of pairs want: keys
[dim / 2, 16, 2], values [8, dim, 2], both bfloat16. A tile of query rows meets four blocks at a
time, keeps its running maximum and sum (Dao et al. 2022, arXiv 2205.14135) in memory between
pieces, and so walks down scene, persona and own tokens. Groups of four blocks are counted from the
first token of a piece and each row has registers of its own: a row's sums do not depend on the rows
beside it, nor on how its prompt was cut.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.native.compiled import inlined
from kernels.cpu.native.vectors import BF16, F32, FLOATS, I32, I64, INTS, LANES, Emitter, const

#: Tokens of a block; a lane each.
BLOCK = LANES
#: Blocks that scores are computed for at a time, and their tokens.
_GROUP = 4
GROUP_TOKENS = _GROUP * BLOCK
#: Query rows of a tile. Times four blocks of scores, or four vectors of output: 24 registers.
TILE = 6
#: Where a row starts that has seen nothing. Finite, so that differences are.
LOWEST = -1e30


def _tile(rows: int) -> Any:
    """A kernel of `rows` query rows."""

    @intrinsic
    def tile(
        typing,
        dim,
        q,
        numbers,
        lows,
        limits,
        keys,
        values,
        blocks,
        first,
        last,
        state,
        out,
        scratch,
    ):
        """See `attend`; blocks [first, last) hold all that is seen, the first begins a group."""

        def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            e = Emitter(builder, BF16)
            dim, q, numbers, lows, limits, keys, values, blocks, first, last = arguments[:10]
            state, out, scratch = arguments[10:]
            block_bytes = e.times(dim, 2 * BLOCK)
            number = [e.load(I64, e.at(numbers, 8 * row)) for row in range(rows)]
            low = [e.load(I32, e.at(lows, 4 * row)) for row in range(rows)]
            limit = [e.load(I32, e.at(limits, 4 * row)) for row in range(rows)]
            queries = [e.at(q, e.times(builder.mul(n, dim), 2)) for n in number]
            outs = [e.at(out, e.times(builder.mul(n, dim), 4)) for n in number]
            states = [e.at(state, e.times(n, 8)) for n in number]
            highest = [e.variable(e.load(F32, s)) for s in states]
            zero_lanes = ir.Constant(FLOATS, [0.0] * LANES)
            sums = [
                e.variable(
                    builder.insert_element(zero_lanes, e.load(F32, e.at(s, 4)), ir.Constant(I32, 0))
                )
                for s in states
            ]
            groups = builder.sdiv(e.at(builder.sub(last, first), _GROUP - 1), const(_GROUP))
            with e.loop(groups) as turn:
                here = builder.add(first, e.times(turn, _GROUP))
                start = e.times(here, BLOCK)
                table = e.at(blocks, e.times(here, 4))
                block = [
                    builder.mul(e.index(e.at(table, 4 * n)), block_bytes) for n in range(_GROUP)
                ]
                scores = _scores(e, rows, dim, queries, [e.at(keys, b) for b in block])
                start32 = builder.trunc(start, I32)
                factors = []
                for row in range(rows):
                    factors.append(
                        _soften(
                            e,
                            [e.get(s) for s in scores[row]],
                            low[row],
                            limit[row],
                            start32,
                            highest[row],
                            sums[row],
                            e.at(scratch, 2 * GROUP_TOKENS * row),
                        )
                    )
                # No further: what lies there is another's, and not a number for all we know.
                left = builder.sub(last, here)
                whole = builder.icmp_signed(">", left, const(_GROUP))
                used = builder.select(whole, const(_GROUP), left)
                _add_values(e, rows, dim, used, table, values, scratch, factors, outs)
            for row in range(rows):
                e.store(e.get(highest[row]), states[row])
                e.store(e.total(e.get(sums[row])), e.at(states[row], 4))
            return context.get_dummy_value()

        return types.void(*[types.intp] * 13), emit

    return tile


def _scores(e: Emitter, rows: int, dim: Any, queries: Any, keys: Any) -> Any:
    """Variables [rows][blocks] of q · k, a lane for each token."""
    totals = [[e.variable(e.floats(0.0)) for _ in range(_GROUP)] for _ in range(rows)]
    with e.loop(e.b.sdiv(dim, const(2))) as pair:
        loaded = [e.load(INTS, e.at(k, e.times(pair, 64))) for k in keys]
        for row in range(rows):
            two = e.splat(e.load(I32, e.at(queries[row], e.times(pair, 4))))
            for total, key in zip(totals[row], loaded, strict=True):
                e.set(total, e.dot_pairs(e.get(total), two, key))
    return totals


def _soften(
    e: Emitter,
    scores: Any,
    low: Any,
    limit: Any,
    first: Any,
    highest: Any,
    total: Any,
    scratch: Any,
) -> Any:
    """Turn a row's scores into weights in `scratch`; returns what its earlier output is worth."""
    hidden = e.floats(-1e38)
    seen = []
    for number, score in enumerate(scores):
        start = e.b.add(first, ir.Constant(I32, BLOCK * number))
        beyond = e.b.or_(e.lanes_below(low, start), e.b.not_(e.lanes_below(limit, start)))
        seen.append(e.b.select(beyond, hidden, score))
    peak = e.maximum(e.maximum(seen[0], seen[1]), e.maximum(seen[2], seen[3]))
    before = e.splat(e.get(highest))
    now = e.maximum(before, e.splat(e.largest(peak)))
    e.set(highest, e.b.extract_element(now, ir.Constant(I32, 0)))
    factor = e.exp2(e.b.fsub(before, now))
    weights = [e.exp2(e.b.fsub(score, now)) for score in seen]
    added = e.b.fadd(e.b.fadd(weights[0], weights[1]), e.b.fadd(weights[2], weights[3]))
    e.set(total, e.fma(e.get(total), factor, added))
    for number in range(0, _GROUP, 2):
        e.store(e.pack_pairs(*weights[number : number + 2]), e.at(scratch, 32 * number))
    return factor


def _add_values(
    e: Emitter,
    rows: int,
    dim: Any,
    used: Any,
    table: Any,
    values: Any,
    scratch: Any,
    factors: Any,
    outs: Any,
) -> None:
    """out = out · factor + weights · values: four vectors of dimensions at a time, then single
    ones.
    """
    vectors = e.b.sdiv(dim, const(LANES))
    fours = e.b.sdiv(vectors, const(4))
    rest = e.b.sub(vectors, e.times(fours, 4))
    for wide, count, first in ((4, fours, const(0)), (1, rest, e.times(fours, 4))):
        with e.loop(count) as turn:
            low = e.b.add(first, e.times(turn, wide))
            _add_vectors(e, rows, dim, low, wide, used, table, values, scratch, factors, outs)


def _add_vectors(
    e: Emitter,
    rows: int,
    dim: Any,
    low: Any,
    wide: int,
    used: Any,
    table: Any,
    values: Any,
    scratch: Any,
    factors: Any,
    outs: Any,
) -> None:
    """`_add_values` for the vectors [low, low + wide) of dimensions."""
    totals = []
    ats = [[e.at(out, e.times(low, 64), 64 * n) for n in range(wide)] for out in outs]
    for row in range(rows):
        scaled = [e.b.fmul(e.load(FLOATS, at), factors[row]) for at in ats[row]]
        totals.append([e.variable(value) for value in scaled])
    with e.loop(used) as number:
        entry = e.index(e.at(table, e.times(number, 4)))
        block = e.at(values, e.times(e.b.mul(entry, dim), 2 * BLOCK), e.times(low, 64))
        for pair in range(BLOCK // 2):
            line = e.at(block, e.times(dim, 4 * pair))
            loaded = [e.load(INTS, e.at(line, 64 * n)) for n in range(wide)]
            for row in range(rows):
                weight = e.at(scratch, 2 * GROUP_TOKENS * row + 4 * pair, e.times(number, 32))
                two = e.splat(e.load(I32, weight))
                for total, value in zip(totals[row], loaded, strict=True):
                    e.set(total, e.dot_pairs(e.get(total), two, value))
    for row in range(rows):
        for total, at in zip(totals[row], ats[row], strict=True):
            e.store(e.get(total), at)


_tile_6, _tile_3, _tile_2, _tile_1 = (_tile(rows) for rows in (6, 3, 2, 1))


@intrinsic
def _int32_at(typing, address):
    """The int32 at an address."""

    def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return Emitter(builder, BF16).index(arguments[0])

    return types.intp(types.intp), emit


@inlined
def _seen_blocks(lows, limits, count):
    """Blocks [first, last) that any of `count` rows sees something of; the first begins a group."""
    low, limit = _int32_at(lows), 0
    for number in range(count):
        low = min(low, _int32_at(lows + 4 * number))
        limit = max(limit, _int32_at(limits + 4 * number))
    first = low // GROUP_TOKENS * _GROUP
    return first, max(first, (limit + BLOCK - 1) // BLOCK)


@inlined
def attend(count, dim, q, numbers, lows, limits, keys, values, blocks, state, out, scratch):
    """Add what `count` query rows see of one piece to their running outputs.

    All arguments but `count` and `dim`, a multiple of 16, are addresses.

    Args:
        q: bfloat16 [.., dim], times log2(e) / sqrt(dim). numbers: int64 [count], where each query
            row lies in q, state and out. lows, limits: int32 [count], the tokens [low, limit) of
            the piece that each sees.
        keys, values: one head of the cache. blocks: int32, the piece's blocks, readable for three
            entries beyond the last.
        state: float32 [.., 2], running maximum and sum. out: float32 [.., dim], not divided by the
            sum yet. scratch: bfloat16 [TILE, GROUP_TOKENS].
    """
    at = 0
    while at < count:
        left = count - at
        size = 6 if left >= 6 else (3 if left >= 3 else left)
        n, w, m = numbers + 8 * at, lows + 4 * at, limits + 4 * at
        first, last = _seen_blocks(w, m, size)
        if size == 6:
            _tile_6(dim, q, n, w, m, keys, values, blocks, first, last, state, out, scratch)
        elif size == 3:
            _tile_3(dim, q, n, w, m, keys, values, blocks, first, last, state, out, scratch)
        elif size == 2:
            _tile_2(dim, q, n, w, m, keys, values, blocks, first, last, state, out, scratch)
        else:
            _tile_1(dim, q, n, w, m, keys, values, blocks, first, last, state, out, scratch)
        at += size
