"""A whole forward pass as one compiled function, called by each thread of a team.

Activations are float32 between the products, 8-bit or bfloat16 inside; keys, values and attention
weights are bfloat16. Whatever happens to a row happens to it alone and in one order, so a row's
logits are the same to the bit in any company and however its prompt was cut into steps.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.cpu.native.attending import BLOCK, GROUP_TOKENS, LOWEST, TILE, attend
from kernels.cpu.native.compiled import inlined, kept
from kernels.cpu.native.matrix import Matrix, padded
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
from kernels.cpu.native.team import PHASE, claim, join, next_claim, ticks

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int32]

#: Phases of a layer, and those before the first and after the last.
LAYER_PHASES, OTHER_PHASES = 10, 3
#: What `Room.times` counts: norms and quantisation, products, rotation and KV, attention, logits.
PARTS = ("rows", "products", "rotate", "attention", "head")
#: Pieces of work per thread that a phase is cut into, so that nobody waits long for the last one.
_PIECES = 8
#: With so many rows the smallest piece of a product is worth claiming by itself.
_MANY_ROWS = 64


class Weights(NamedTuple):
    """A decoder's weights; what a model does not have is of width 0.

    Attributes:
        embedding: bfloat16 bits [vocab, hidden].
        attention_norm, ffn_norm: float32 [layers, hidden]. norm: float32 [hidden].
        qkv, output, gate_up, down: one matrix a layer. head: one in all.
        qkv_bias: float32 [layers, outputs of qkv].
        q_norm, k_norm: float32 [layers, head_dim], norms of each head before its rotation.
        rotated: bool [layers], whether Q and K are rotated at all.
        windows: int32 [layers], how many tokens a row sees, itself included; 0 is all.
    """

    embedding: Halves
    attention_norm: Floats
    ffn_norm: Floats
    norm: Floats
    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix
    head: Matrix
    qkv_bias: Floats
    q_norm: Floats
    k_norm: Floats
    rotated: npt.NDArray[np.bool_]
    windows: Ints


class Shape(NamedTuple):
    """What is not an array.

    Attributes:
        heads, kv_heads, dim, ffn: sizes, see `engine.models.config.ModelConfig`.
        eps: of the norms.
        query_scale: what queries are multiplied with; log2(e) is part of it.
        embedding_scale: what embeddings are multiplied with.
        form: of the layers' weights, see `products`.
    """

    heads: int
    kv_heads: int
    dim: int
    ffn: int
    eps: np.float32
    query_scale: np.float32
    embedding_scale: np.float32
    form: int


class Batch(NamedTuple):
    """What one step computes.

    Attributes:
        tokens: int32 [rows]. positions: int32 [rows]. slots: int64 [rows], where KV is written.
        cos, sin: float32 [rows, pairs of dimensions that rotate].
        order: int32 [rows], rows of sequences with pieces in common next to one another.
        chain_first, chain_length: int32 [rows], the row's pieces in `chains`.
        chains: int32, numbers of pieces.
        pieces: int32 [pieces, 3]: first entry in `blocks`, position of the first token, tokens.
        blocks: int32, blocks of 16 slots, with three entries to spare.
        wanted: int32, rows whose logits are computed.
        unit: rows that attend together.
    """

    tokens: Ints
    positions: Ints
    slots: npt.NDArray[np.int64]
    cos: Floats
    sin: Floats
    order: Ints
    chain_first: Ints
    chain_length: Ints
    chains: Ints
    pieces: Ints
    blocks: Ints
    wanted: Ints
    unit: int


class Room(NamedTuple):
    """Scratch memory, for the largest step.

    Attributes:
        x: float32 [rows, hidden padded]. wide: float32 [rows, widest product].
        bytes_: uint8 [rows, bytes of the deepest product]. scales: float32 [rows].
        sums: float32, [rows, groups] of the present product.
        q: bfloat16 bits [rows, heads, dim]. out: float32 [rows, heads, dim].
        state: float32 [rows, heads, 2].
        logits: float32 [samples, vocab padded].
        line: float32 [threads, longest row]. weights: bfloat16 bits [threads, TILE · GROUP_TOKENS].
        numbers: int64 [threads, rows · group]. lows, limits: int32 [threads, rows · group].
        counters: int64, see `team`. times: int64 [len(PARTS)], processor ticks spent in each part.
    """

    x: Floats
    wide: Floats
    bytes_: npt.NDArray[np.uint8]
    scales: Floats
    sums: Floats
    q: Halves
    out: Floats
    state: Floats
    logits: Floats
    line: Floats
    weights: Halves
    numbers: npt.NDArray[np.int64]
    lows: Ints
    limits: Ints
    counters: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]


@inlined
def _multiply(room, threads, phase, matrix, layer, rows, out, add):
    """bytes_ [rows] times matrix `layer` into (or onto) `out`."""
    units = matrix.scales.shape[1] // WIDTH
    step = 1 if rows >= _MANY_ROWS else max(1, units // (_PIECES * threads))
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
def _embed(weights, shape, batch, room, phase, step):
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
def _norm(weight, shape, batch, room, phase, step, line):
    """RMSNorm of x, quantised."""
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
def _enter(weights, shape, batch, keys, values, room, layer, phase, step):
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
def _attend(shape, window, batch, keys, values, room, phase, thread):
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
def _attended(shape, batch, room, phase, step, line):
    """What attention found, divided by its sums and quantised."""
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
def _activate(shape, batch, room, phase, step, line):
    """silu(gate) · up, quantised."""
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
def _last_norm(weights, shape, batch, room, phase, line):
    """The final norm of wanted rows, quantised, one after another."""
    pieces, hidden = len(batch.wanted), len(weights.norm)
    piece = claim(room.counters, phase, pieces)
    while piece >= 0:
        normalise(room.x[batch.wanted[piece]], weights.norm, hidden, shape.eps, line)
        _round(shape, room, line, hidden, piece)
        piece = next_claim(room.counters, phase, pieces)
    join(room.counters, phase, pieces)


@inlined
def _spent(room, thread, part, since):
    """Book the time since `since` to a part; returns the time."""
    now = ticks()
    if thread == 0:
        room.times[part] += now - since
    return now


@kept
def forward(weights, shape, batch, keys, values, room, thread, threads):
    """One thread's part of a step; `room.logits` holds the result when all have returned.

    keys, values: bfloat16 bits [layers, kv_heads, blocks of 16, 16 · dim].
    """
    rows = len(batch.tokens)
    line = room.line[thread]
    step = max(1, rows // (_PIECES * threads))
    t = ticks()
    _embed(weights, shape, batch, room, 0, step)
    phase = 1
    for layer in range(keys.shape[0]):
        k, v = keys[layer], values[layer]
        _norm(weights.attention_norm[layer], shape, batch, room, phase, step, line)
        t = _spent(room, thread, 0, t)
        _multiply(room, threads, phase + 1, weights.qkv, layer, rows, room.wide, 0)
        t = _spent(room, thread, 1, t)
        _enter(weights, shape, batch, k, v, room, layer, phase + 2, step)
        t = _spent(room, thread, 2, t)
        _attend(shape, weights.windows[layer], batch, k, v, room, phase + 3, thread)
        t = _spent(room, thread, 3, t)
        _attended(shape, batch, room, phase + 4, step, line)
        t = _spent(room, thread, 0, t)
        _multiply(room, threads, phase + 5, weights.output, layer, rows, room.x, 1)
        t = _spent(room, thread, 1, t)
        _norm(weights.ffn_norm[layer], shape, batch, room, phase + 6, step, line)
        t = _spent(room, thread, 0, t)
        _multiply(room, threads, phase + 7, weights.gate_up, layer, rows, room.wide, 0)
        t = _spent(room, thread, 1, t)
        _activate(shape, batch, room, phase + 8, step, line)
        t = _spent(room, thread, 0, t)
        _multiply(room, threads, phase + 9, weights.down, layer, rows, room.x, 1)
        t = _spent(room, thread, 1, t)
        phase += LAYER_PHASES
    samples = len(batch.wanted)
    if samples:
        _last_norm(weights, shape, batch, room, phase, line)
        _multiply(room, threads, phase + 1, weights.head, 0, samples, room.logits, 0)
        _spent(room, thread, 4, t)


def make_room(
    shape: Shape, hidden: int, vocab: int, rows: int, samples: int, threads: int, layers: int
) -> Room:
    """Scratch memory for steps of up to `rows` rows and `samples` logits rows."""
    inner = shape.heads * shape.dim
    kv = 2 * shape.kv_heads * shape.dim
    wide = max(padded(inner + kv, WIDTH), padded(2 * shape.ffn, WIDTH))
    deep = padded(max(hidden, inner, shape.ffn), GROUP)
    group = shape.heads // shape.kv_heads
    return Room(
        x=np.zeros((rows, padded(hidden, WIDTH)), np.float32),
        wide=np.zeros((rows, wide), np.float32),
        bytes_=np.zeros((rows, deep * (2 if shape.form == HALVES else 1)), np.uint8),
        scales=np.zeros(rows, np.float32),
        sums=np.zeros(rows * deep // GROUP, np.float32),
        q=np.zeros((rows, shape.heads, shape.dim), np.uint16),
        out=np.zeros((rows, shape.heads, shape.dim), np.float32),
        state=np.zeros((rows, shape.heads, 2), np.float32),
        logits=np.zeros((samples, padded(vocab, WIDTH)), np.float32),
        line=np.zeros((threads, deep), np.float32),
        weights=np.zeros((threads, TILE * GROUP_TOKENS), np.uint16),
        numbers=np.zeros((threads, rows * group), np.int64),
        lows=np.zeros((threads, rows * group), np.int32),
        limits=np.zeros((threads, rows * group), np.int32),
        counters=np.zeros((layers * LAYER_PHASES + OTHER_PHASES) * PHASE, np.int64),
        times=np.zeros(len(PARTS), np.int64),
    )
