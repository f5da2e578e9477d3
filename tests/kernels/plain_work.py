"""`kernels.tree_work.plan_work` as loops over shares, pieces and tiles: what its arrays must be."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kernels.tree_work import (
    CHUNK,
    ITEM_FIELDS,
    LINK_FIELDS,
    LONG,
    LONG_CHUNK,
    READING_FIELDS,
    Ints,
    Piece,
    Share,
    TileRows,
    Work,
)


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


def plan_work_plainly(shares: Sequence[Share], most: TileRows) -> Work:
    """What `kernels.tree_work.plan_work` returns."""
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
    last = 0
    for share in shares:
        start, end = last, last + share.count
        last = end
        places = [blocks.place(piece) for piece in share.pieces]
        # The last piece is the one that these rows are written to.
        piece_start[start:end] = share.pieces[-1].start
        piece_blocks[start:end] = places[-1]
        if not share.speaking and share.count >= max(most.reading, 2):
            context = sum(piece.length for piece in share.pieces)
            for first in range(start, end, most.reading):
                size = min(most.reading, end - first)
                reading.append((first, size, len(links), len(places)))
                seen.append(context - (end - first - size))
            for at, piece in zip(places, share.pieces, strict=True):
                links.append((at, piece.start, piece.length))
            continue
        rows = np.arange(start, end, dtype=np.int32)
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
