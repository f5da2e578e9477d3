"""What the compiled forward pass is given: weights, a batch, and room to work in."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.cpu.native.attending import GROUP_TOKENS, TILE
from kernels.cpu.native.matrix import Matrix, padded
from kernels.cpu.native.products import GROUP, HALVES, WIDTH
from kernels.cpu.native.team import PHASE

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int32]

#: Phases of a layer, and those before the first and after the last.
LAYER_PHASES, OTHER_PHASES = 10, 3
#: What `Room.times` counts: norms and quantisation, products, rotation and KV, attention, logits.
PARTS = ("rows", "products", "rotate", "attention", "head")
ROWS, PRODUCTS, ROTATE, ATTENTION, HEAD = range(len(PARTS))


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
        silent: whether the step leaves nothing but keys and values.
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
    silent: bool
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
