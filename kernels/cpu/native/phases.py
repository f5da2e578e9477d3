"""The phases of a forward pass. Each thread of the team calls each of them; the work is shared.

Whatever happens to a row happens to it alone and in one order.
"""

import numpy as np

from kernels.cpu.native.attending import BLOCK, LOWEST, attend
from kernels.cpu.native.compiled import inlined
from kernels.cpu.native.products import GROUP, HALVES, NIBBLES, WIDTH, product
from kernels.cpu.native.rows import (
    from_bf16,
    normalise,
    quantise,
    rotate,
    round_halves,
    silu_gate,
    store_key,
    store_query,
    store_value,
    sum_groups,
)
from kernels.cpu.native.team import claim, join, next_claim

#: Pieces of work per thread that a phase is cut into, so that nobody waits long for the last one.
PIECES = 8
#: With so many rows the smallest piece of a product is worth claiming by itself.
_MANY_ROWS = 64


@inlined
def multiply(room, threads, phase, matrix, layer, rows, out, add):
    """bytes_ [rows] times matrix `layer` into (or onto) `out`."""
    units = matrix.scales.shape[1] // WIDTH
    step = 1 if rows >= _MANY_ROWS else max(1, units // (PIECES * threads))
    pieces = (units + step - 1) // step
    weight = matrix.weight[layer].ctypes.data
    scales, zeros = matrix.scales[layer].ctypes.data, matrix.zeros[layer].ctypes.data
    piece = claim(room.counters, phase, pieces)
    while piece >= 0:
        product(
            matrix.form,
            room.bytes_.ctypes.data,
            room.bytes_.shape[1],
            weight,
            matrix.weight.strides[1],
            matrix.weight.shape[2],
            piece * step * WIDTH,
            min((piece + 1) * step, units) * WIDTH,
            rows,
            out.ctypes.data,
            out.shape[1] * 4,
            scales,
            zeros,
            room.scales.ctypes.data,
            room.sums.ctypes.data,
            add,
        )
        piece = next_claim(room.counters, phase, pieces)
    join(room.counters, phase, pieces)


@inlined
def embed(weights, shape, batch, room, phase, step):
    """Rows of the embedding table."""
    rows, hidden = len(batch.tokens), len(weights.norm)
    pieces = (rows + step - 1) // step
    piece = claim(room.counters, phase, pieces)
    while piece >= 0:
        for row in range(piece * step, min((piece + 1) * step, rows)):
            of_token, x = weights.embedding[batch.tokens[row]], room.x[row]
            for i in range(hidden):
                x[i] = from_bf16(of_token[i]) * shape.embedding_scale
            x[hidden:] = 0.0
        piece = next_claim(room.counters, phase, pieces)
    join(room.counters, phase, pieces)


@inlined
def _round(shape, room, line, count, row):
    """line[:count] as a row that products take."""
    if shape.form == HALVES:
        round_halves(line, count, room.bytes_[row].view(np.uint16))
        return
    room.scales[row] = quantise(line, count, room.bytes_[row])
    if shape.form == NIBBLES:
        groups = (count + GROUP - 1) // GROUP
        sum_groups(room.bytes_[row], count, room.sums[row * groups : (row + 1) * groups])


@inlined
def norm_rows(weight, shape, batch, room, phase, step, line):
    """RMSNorm of x, rounded for the next product."""
    rows, hidden = len(batch.tokens), len(weight)
    pieces = (rows + step - 1) // step
    piece = claim(room.counters, phase, pieces)
    while piece >= 0:
        for row in range(piece * step, min((piece + 1) * step, rows)):
            normalise(room.x[row], weight, hidden, shape.eps, line)
            _round(shape, room, line, hidden, row)
        piece = next_claim(room.counters, phase, pieces)
    join(room.counters, phase, pieces)


@inlined
def enter_rows(weights, shape, batch, keys, values, room, layer, phase, step):
    """Bias, norms and rotation of Q and K; K and V into the cache."""
    rows, dim, heads, kv_heads = len(batch.tokens), shape.dim, shape.heads, shape.kv_heads
    half = batch.cos.shape[1]
    pieces = (rows + step - 1) // step
    piece = claim(room.counters, phase, pieces)
    while piece >= 0:
        for row in range(piece * step, min((piece + 1) * step, rows)):
            line = room.wide[row]
            for i in range(weights.qkv_bias.shape[1]):
                line[i] += weights.qkv_bias[layer, i]
            for h in range(heads + kv_heads):
                head = line[h * dim : (h + 1) * dim]
                if weights.q_norm.shape[1]:
                    norm = weights.q_norm[layer] if h < heads else weights.k_norm[layer]
                    normalise(head, norm, dim, shape.eps, head)
                if weights.rotated[layer]:
                    rotate(head, batch.cos[row], batch.sin[row], half)
            for h in range(heads):
                store_query(line[h * dim : (h + 1) * dim], dim, shape.query_scale, room.q[row, h])
            block, lane = batch.slots[row] // BLOCK, batch.slots[row] % BLOCK
            for h in range(kv_heads):
                at = (heads + h) * dim
                store_key(line[at : at + dim], dim, keys[h, block], lane)
                at = (heads + kv_heads + h) * dim
                store_value(line[at : at + dim], dim, values[h, block], lane)
        piece = next_claim(room.counters, phase, pieces)
    join(room.counters, phase, pieces)


@inlined
def _attend_unit(shape, window, batch, keys, values, room, thread, head, first, last):
    """Rows order[first:last] attend with one KV head: piece by piece, whoever shares it."""
    group = shape.heads // shape.kv_heads
    numbers, lows, limits = room.numbers[thread], room.lows[thread], room.limits[thread]
    deepest = 0
    for index in range(first, last):
        row = batch.order[index]
        deepest = max(deepest, batch.chain_length[row])
        for h in range(head * group, (head + 1) * group):
            room.state[row, h, 0] = LOWEST
            room.state[row, h, 1] = 0.0
            room.out[row, h] = 0.0
    for depth in range(deepest):
        index = first
        while index < last:
            piece = _piece(batch, index, depth)
            if piece < 0:
                index += 1
                continue
            start, length = batch.pieces[piece, 1], batch.pieces[piece, 2]
            count = 0
            while index < last and _piece(batch, index, depth) == piece:
                row = batch.order[index]
                seen = batch.positions[row] + 1 - start
                low = max(seen - window, 0) if window else 0
                for h in range(head * group, (head + 1) * group):
                    if low < length:
                        numbers[count] = row * shape.heads + h
                        lows[count], limits[count] = low, min(length, seen)
                        count += 1
                index += 1
            attend(
                count,
                shape.dim,
                room.q.ctypes.data,
                numbers.ctypes.data,
                lows.ctypes.data,
                limits.ctypes.data,
                keys[head].ctypes.data,
                values[head].ctypes.data,
                batch.blocks[batch.pieces[piece, 0] :].ctypes.data,
                room.state.ctypes.data,
                room.out.ctypes.data,
                room.weights[thread].ctypes.data,
            )


@inlined
def _piece(batch, index, depth):
    """The piece number `depth` of row order[index], or -1."""
    row = batch.order[index]
    if depth >= batch.chain_length[row]:
        return -1
    return batch.chains[batch.chain_first[row] + depth]


@inlined
def attend_rows(shape, window, batch, keys, values, room, phase, thread):
    """Attention, not divided by its sums yet."""
    rows = len(batch.tokens)
    units = (rows + batch.unit - 1) // batch.unit
    pieces = units * shape.kv_heads
    piece = claim(room.counters, phase, pieces)
    while piece >= 0:
        first = piece % units * batch.unit
        last = min(first + batch.unit, rows)
        _attend_unit(shape, window, batch, keys, values, room, thread, piece // units, first, last)
        piece = next_claim(room.counters, phase, pieces)
    join(room.counters, phase, pieces)


@inlined
def divide_rows(shape, batch, room, phase, step, line):
    """What attention found, divided by its sums and rounded for the next product."""
    rows, dim = len(batch.tokens), shape.dim
    pieces = (rows + step - 1) // step
    piece = claim(room.counters, phase, pieces)
    while piece >= 0:
        for row in range(piece * step, min((piece + 1) * step, rows)):
            for h in range(shape.heads):
                share = np.float32(1.0) / room.state[row, h, 1]
                for i in range(dim):
                    line[h * dim + i] = room.out[row, h, i] * share
            _round(shape, room, line, shape.heads * dim, row)
        piece = next_claim(room.counters, phase, pieces)
    join(room.counters, phase, pieces)


@inlined
def activate_rows(shape, batch, room, phase, step, line):
    """silu(gate) · up, rounded for the next product."""
    rows = len(batch.tokens)
    pieces = (rows + step - 1) // step
    piece = claim(room.counters, phase, pieces)
    while piece >= 0:
        for row in range(piece * step, min((piece + 1) * step, rows)):
            silu_gate(room.wide[row], shape.ffn, line)
            _round(shape, room, line, shape.ffn, row)
        piece = next_claim(room.counters, phase, pieces)
    join(room.counters, phase, pieces)


@inlined
def norm_wanted(weights, shape, batch, room, phase, line):
    """The final norm of wanted rows, rounded for the head, one after another."""
    pieces, hidden = len(batch.wanted), len(weights.norm)
    piece = claim(room.counters, phase, pieces)
    while piece >= 0:
        normalise(room.x[batch.wanted[piece]], weights.norm, hidden, shape.eps, line)
        _round(shape, room, line, hidden, piece)
        piece = next_claim(room.counters, phase, pieces)
    join(room.counters, phase, pieces)
