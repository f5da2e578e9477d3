"""Lays a plan out as the arrays that the compiled forward pass reads."""

from collections.abc import Sequence

import numpy as np

from engine.plan import SequenceStep
from kernels.cpu.native.attending import BLOCK
from kernels.cpu.native.tables import Batch, Floats

#: Rows that attend together at most; few enough that every thread finds work.
_MOST_UNIT = 16
#: Units per thread that rows are divided into where there are enough of them.
_UNITS = 8
#: Entries that may be read behind a piece's blocks.
_SPARE_BLOCKS = 3


def lay_out(
    sequences: Sequence[SequenceStep],
    block_size: int,
    cos: Floats,
    sin: Floats,
    kv_heads: int,
    threads: int,
) -> Batch:
    """The arrays of one step; `cos` and `sin` are tables [positions, dim / 2].

    Pieces of context that several sequences have in common appear once, and their rows stand next
    to one another in `order`, so that what is read for one is still in the cache for the next.
    """
    tokens: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    positions: list[int] = []
    chains: list[int] = []
    pieces: list[tuple[int, int, int]] = []
    blocks: list[int] = []
    known: dict[tuple[int, int], int] = {}
    rows: list[tuple[tuple[int, ...], int, int, int]] = []  # pieces, place in chains, first, count
    for share in sequences:
        first, count = len(tokens), len(share.tokens)
        tokens.extend(share.tokens)
        slots.extend(share.slots(block_size))
        positions.extend(range(share.start, share.start + count))
        if share.sample:
            wanted.append(first + count - 1)
        chain = []
        start = 0
        for segment in share.segments:
            key = (segment.node, segment.length)
            number = known.get(key, -1) if segment.node >= 0 else -1
            if number < 0:
                number = len(pieces)
                pieces.append((len(blocks), start, segment.length))
                blocks.extend(segment.blocks)
                if segment.node >= 0:
                    known[key] = number
            chain.append(number)
            start += segment.length
        rows.append((tuple(chain), len(chains), first, count))
        chains.extend(chain)
    total = len(tokens)
    chain_first, chain_length = np.zeros(total, np.int32), np.zeros(total, np.int32)
    order = np.empty(total, np.int32)
    at = 0
    for pieces_of, place, first, count in sorted(rows):
        chain_first[first : first + count] = place
        chain_length[first : first + count] = len(pieces_of)
        order[at : at + count] = np.arange(first, first + count)
        at += count
    where = np.array(positions, np.int32)
    unit = -(-total * kv_heads // (_UNITS * threads))
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=where,
        slots=np.array(slots, np.int64),
        cos=cos[where],
        sin=sin[where],
        order=order,
        chain_first=chain_first,
        chain_length=chain_length,
        chains=np.array(chains, np.int32),
        pieces=_in_small_blocks(np.array(pieces, np.int32), block_size),
        blocks=_small_blocks(blocks, block_size),
        wanted=np.array(wanted, np.int32),
        silent=not wanted and all(share.states is None for share in sequences),
        unit=max(1, min(unit + unit % 2, _MOST_UNIT)),
    )


def _small_blocks(blocks: list[int], block_size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Blocks of 16 slots, int32, with some to spare."""
    per = block_size // BLOCK
    table = np.zeros(len(blocks) * per + _SPARE_BLOCKS, np.int32)
    small = np.array(blocks, np.int32)[:, None] * per + np.arange(per, dtype=np.int32)
    table[: small.size] = small.reshape(-1)
    return table


def _in_small_blocks(
    pieces: np.ndarray[tuple[int, int], np.dtype[np.int32]], block_size: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Pieces whose first entry counts blocks of 16 slots."""
    pieces[:, 0] *= block_size // BLOCK
    return pieces
