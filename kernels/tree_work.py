"""Tree attention's work list: who attends to what, cut into pieces a kernel can take one by one.

The KV a row sees is a chain of *pieces* (scene, persona, own part). Rows that share a piece read
it together: an item is a tile of rows, a list of blocks and a stretch of the piece. Each item
leaves a partial result for each of its rows; a row's result is the merge of its partials.

A row's sums must not depend on who else is in the batch. So stretches are counted from the first
token of their piece and have a fixed length, and partials are merged in order of position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

#: Tokens of a stretch that speaking rows attend to, in pieces of up to `LONG` tokens and in longer
#: ones. Long stretches leave most of a device idle when few rows speak; short ones cost more in
#: partial results, and in programs that only start and end, than they win.
CHUNK, LONG_CHUNK = 512, 1024
LONG = 2048
#: Columns of an item: first entry in `Work.rows`, rows, first entry in `Work.blocks` (of the
#: piece's first token), position of the piece's first token, stretch of the piece [from, to),
#: first partial, and the batch row if there is only one, else -1.
ITEM_FIELDS = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """KV of consecutive positions.

    Attributes:
        key: equal keys (0 or more) mean equal blocks; -1 is nobody else's.
        start: position of its first token.
        length: tokens it may hold while the work list is in use.
        blocks: int32, physical blocks in order.
    """

    key: int
    start: int
    length: int
    blocks: Ints


@dataclass(frozen=True, slots=True)
class Share:
    """Rows [first, first + count) of a batch follow one another in one sequence.

    Attributes:
        pieces: all KV they see, in order of position; the last one is also where theirs is written.
        speaking: one row that continues a reply; its pieces are read in stretches of `CHUNK`.
    """

    first: int
    count: int
    pieces: tuple[Piece, ...]
    speaking: bool


@dataclass(frozen=True, slots=True)
class Work:
    """The tables, all int32.

    Attributes:
        rows: batch rows, item after item.
        blocks: physical blocks, piece after piece.
        small, large: items [n, ITEM_FIELDS] of few and of many speaking rows.
        reading: items of rows that read.
        parts: partials of each row in order of position, row after row.
        part_first, part_count: [batch rows], each row's share of `parts`.
        piece_start: [batch rows], position of the first token of the piece a row is written to.
        piece_blocks: [batch rows], first entry of that piece in `blocks`.
        partials: number of partial results.
    """

    rows: Ints
    blocks: Ints
    small: Ints
    large: Ints
    reading: Ints
    parts: Ints
    part_first: Ints
    part_count: Ints
    piece_start: Ints
    piece_blocks: Ints
    partials: int


@dataclass(slots=True)
class _Group:
    """Everybody who reads one piece in one manner."""

    piece: Piece
    at: int  # the piece's first entry in the block table
    column: int  # partials its rows have from earlier pieces
    speaking: bool
    stretches: list[tuple[int, int]]
    rows: list[Ints] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TileRows:
    """Batch rows that an item of each kind holds at most."""

    small: int
    large: int
    reading: int


def plan_work(shares: Sequence[Share], most: TileRows) -> Work:
    """Cut a batch into items of at most so many rows.

    Items come longest first, so that the last ones to start are short.
    """
    total = sum(share.count for share in shares)
    piece_start = np.zeros(total, np.int32)
    piece_blocks = np.zeros(total, np.int32)
    block_table: list[Ints] = []
    entries = 0
    placed: dict[int, int] = {}
    groups: dict[tuple[int, bool], _Group] = {}
    ordered: list[_Group] = []
    for share in shares:
        rows = np.arange(share.first, share.first + share.count, dtype=np.int32)
        column = at = 0
        for piece in share.pieces:
            group = groups.get((piece.key, share.speaking)) if piece.key >= 0 else None
            if group is None:
                at = placed.get(piece.key, -1)
                if at < 0:
                    at = entries
                    block_table.append(piece.blocks)
                    entries += len(piece.blocks)
                stretches = _stretches(piece.length, share.speaking)
                group = _Group(piece, at, column, share.speaking, stretches)
                ordered.append(group)
                if piece.key >= 0:
                    placed[piece.key] = at
                    groups[piece.key, share.speaking] = group
            group.rows.append(rows)
            column += len(group.stretches)
            at = group.at
        # Of the last piece, which is the one that these rows are written to.
        piece_start[share.first : share.first + share.count] = share.pieces[-1].start
        piece_blocks[share.first : share.first + share.count] = at
    return _cut(ordered, block_table, piece_start, piece_blocks, most)


def _cut(
    groups: list[_Group],
    block_table: list[Ints],
    piece_start: Ints,
    piece_blocks: Ints,
    most: TileRows,
) -> Work:
    row_table: list[Ints] = []
    entries = partials = 0
    small: list[tuple[int, ...]] = []
    large: list[tuple[int, ...]] = []
    reading: list[tuple[int, ...]] = []
    owners: list[Ints] = []  # row of each partial
    columns: list[tuple[int, int]] = []  # place among its row's partials, how often
    for group in groups:
        rows = group.rows[0] if len(group.rows) == 1 else np.concatenate(group.rows)
        piece = group.piece
        step = most.large if group.speaking else most.reading
        for first in range(0, len(rows), step):
            tile = rows[first : first + step]
            size = len(tile)
            row_table.append(tile)
            kind = (large if size > most.small else small) if group.speaking else reading
            only = int(tile[0]) if size == 1 else -1
            for number, (start, end) in enumerate(group.stretches):
                kind.append((entries, size, group.at, piece.start, start, end, partials, only))
                owners.append(tile)
                columns.append((group.column + number, size))
                partials += size
            entries += size
    total = len(piece_start)
    owner = np.concatenate(owners) if owners else np.zeros(0, np.int32)
    at, sizes = np.array(columns, np.int64).reshape(-1, 2).T
    place = np.repeat(at, sizes)
    part_count = np.bincount(owner, minlength=total).astype(np.int32)
    part_first = (np.cumsum(part_count) - part_count).astype(np.int32)
    parts = np.empty(partials, np.int32)
    parts[part_first[owner] + place] = np.arange(partials, dtype=np.int32)
    return Work(
        np.concatenate(row_table) if row_table else np.zeros(0, np.int32),
        np.concatenate(block_table) if block_table else np.zeros(0, np.int32),
        _longest_first(small),
        _longest_first(large),
        _longest_first(reading),
        parts,
        part_first,
        part_count,
        piece_start,
        piece_blocks,
        partials,
    )


def _stretches(length: int, speaking: bool) -> list[tuple[int, int]]:
    """Stretches of a piece. Reading rows take it in one: they are many and fill the device."""
    if not speaking:
        return [(0, length)]
    step = CHUNK if length <= LONG else LONG_CHUNK
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def _longest_first(items: list[tuple[int, ...]]) -> Ints:
    table = np.array(items, np.int32).reshape(-1, ITEM_FIELDS)
    return table[np.argsort(table[:, 4] - table[:, 5], kind="stable")]
