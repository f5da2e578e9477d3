"""Tree attention's work list: who attends to what, cut into pieces a kernel can take one by one.

The KV a row sees is a chain of *pieces* (scene, persona, own part). Rows that share a piece read
it together: an item is a tile of rows, a list of blocks and a stretch of the piece. Each item
leaves a partial result for each of its rows; a row's result is the merge of its partials.

A sequence that reads many tokens at once fills tiles by itself: its items walk down the whole chain
and leave no partials, only results.

A row's sums must not depend on who else is in the batch. So stretches are counted from the first
token of their piece and have a fixed length, and partials are merged in order of position; down a
chain the same sums are made in the same order.
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
#: piece's first token), position of the piece's first token, stretch of the piece [from, to), and
#: first partial.
ITEM_FIELDS = 7
#: Columns of a reading item: first batch row, rows, first entry in `Work.links`, links.
READING_FIELDS = 4
#: Columns of a link, one piece of a reading item's chain: first entry in `Work.blocks`, position of
#: the piece's first token, tokens.
LINK_FIELDS = 3


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
        small, large: items [n, ITEM_FIELDS] of few and of many rows.
        reading: items [n, READING_FIELDS] of rows that read whole tiles at a time.
        links: chains [n, LINK_FIELDS] of reading items.
        merged: batch rows of `small` and `large` items, whose results are merged from partials.
        parts: partials of each such row in order of position, row after row.
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
    links: Ints
    merged: Ints
    parts: Ints
    part_first: Ints
    part_count: Ints
    piece_start: Ints
    piece_blocks: Ints
    partials: int


@dataclass(frozen=True, slots=True)
class TileRows:
    """Batch rows that an item of each kind holds at most."""

    small: int
    large: int
    reading: int


@dataclass(slots=True)
class _Group:
    """Everybody who reads one piece in one manner."""

    piece: Piece
    at: int  # the piece's first entry in the block table
    column: int  # partials its rows have from earlier pieces
    stretches: list[tuple[int, int]]
    rows: list[Ints] = field(default_factory=list)


class _BlockTable:
    """The blocks of all pieces; those of a shared piece stand there once."""

    def __init__(self) -> None:
        self._parts: list[Ints] = []
        self._size = 0
        self._places: dict[int, int] = {}

    def place(self, piece: Piece) -> int:
        """The first entry of a piece."""
        at = self._places.get(piece.key, -1)
        if at < 0:
            at = self._size
            self._parts.append(piece.blocks)
            self._size += len(piece.blocks)
            if piece.key >= 0:
                self._places[piece.key] = at
        return at

    def table(self) -> Ints:
        return _joined(self._parts)


def plan_work(shares: Sequence[Share], most: TileRows) -> Work:
    """Cut a batch into items of at most so many rows.

    Items come longest first, so that the last ones to start are short.
    """
    total = sum(share.count for share in shares)
    piece_start = np.zeros(total, np.int32)
    piece_blocks = np.zeros(total, np.int32)
    blocks = _BlockTable()
    groups: dict[tuple[int, bool], _Group] = {}
    ordered: list[_Group] = []
    merged: list[Ints] = []
    reading: list[tuple[int, ...]] = []
    seen: list[int] = []  # tokens that each reading item sees
    links: list[tuple[int, int, int]] = []
    for share in shares:
        end = share.first + share.count
        places = [blocks.place(piece) for piece in share.pieces]
        # The last piece is the one that these rows are written to.
        piece_start[share.first : end] = share.pieces[-1].start
        piece_blocks[share.first : end] = places[-1]
        if not share.speaking and share.count >= max(most.reading, 2):
            context = sum(piece.length for piece in share.pieces)
            for first in range(share.first, end, most.reading):
                size = min(most.reading, end - first)
                reading.append((first, size, len(links), len(places)))
                seen.append(context - (end - first - size))
            for at, piece in zip(places, share.pieces, strict=True):
                links.append((at, piece.start, piece.length))
            continue
        rows = np.arange(share.first, end, dtype=np.int32)
        merged.append(rows)
        column = 0
        for at, piece in zip(places, share.pieces, strict=True):
            group = groups.get((piece.key, share.speaking)) if piece.key >= 0 else None
            if group is None:
                group = _Group(piece, at, column, _stretches(piece.length, share.speaking))
                ordered.append(group)
                if piece.key >= 0:
                    groups[piece.key, share.speaking] = group
            group.rows.append(rows)
            column += len(group.stretches)
    small, large, row_table, parts, part_first, part_count = _cut(ordered, total, most)
    chains = np.array(reading, np.int32).reshape(-1, READING_FIELDS)
    return Work(
        rows=row_table,
        blocks=blocks.table(),
        small=small,
        large=large,
        reading=chains[np.argsort(-np.array(seen, np.int64), kind="stable")],
        links=np.array(links, np.int32).reshape(-1, LINK_FIELDS),
        merged=_joined(merged),
        parts=parts,
        part_first=part_first,
        part_count=part_count,
        piece_start=piece_start,
        piece_blocks=piece_blocks,
        partials=len(parts),
    )


def _cut(
    groups: list[_Group], total: int, most: TileRows
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """Small and large items, their rows, and each row's partials: all, first and count."""
    row_table: list[Ints] = []
    entries = partials = 0
    small: list[tuple[int, ...]] = []
    large: list[tuple[int, ...]] = []
    owners: list[Ints] = []  # row of each partial
    columns: list[tuple[int, int]] = []  # place among its row's partials, how often
    for group in groups:
        rows = _joined(group.rows)
        piece = group.piece
        # A tall tile that is mostly empty takes longer than two that are full.
        step = most.large if len(rows) > 2 * most.small else most.small
        for first in range(0, len(rows), step):
            tile = rows[first : first + step]
            size = len(tile)
            row_table.append(tile)
            kind = large if size > most.small else small
            for number, (start, end) in enumerate(group.stretches):
                kind.append((entries, size, group.at, piece.start, start, end, partials))
                owners.append(tile)
                columns.append((group.column + number, size))
                partials += size
            entries += size
    owner = _joined(owners)
    at, sizes = np.array(columns, np.int64).reshape(-1, 2).T
    place = np.repeat(at, sizes)
    part_count = np.bincount(owner, minlength=total).astype(np.int32)
    part_first = (np.cumsum(part_count) - part_count).astype(np.int32)
    parts = np.empty(partials, np.int32)
    parts[part_first[owner] + place] = np.arange(partials, dtype=np.int32)
    return (
        _longest_first(small),
        _longest_first(large),
        _joined(row_table),
        parts,
        part_first,
        part_count,
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


def _joined(arrays: list[Ints]) -> Ints:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
