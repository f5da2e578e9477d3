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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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


class Share:
    """Consecutive rows of a batch that follow one another in one sequence.

    Work is planned anew in every step, while a reply's share stays the same until the reply ends:
    what planning needs of it is laid out once.

    Attributes:
        count: rows.
        pieces: all KV they see, in order of position; the last one is also where theirs is written.
        speaking: one row that continues a reply; its pieces are read in stretches of `CHUNK`.
        fields: int64 [pieces, 4], key, start, length and number of blocks of each piece.
        blocks: of each piece.
    """

    __slots__ = ("blocks", "count", "fields", "pieces", "speaking")

    def __init__(self, count: int, pieces: Sequence[Piece], speaking: bool) -> None:
        self.count, self.pieces, self.speaking = count, tuple(pieces), speaking
        self.blocks = [piece.blocks for piece in pieces]
        self.fields = np.array([(p.key, p.start, p.length, len(p.blocks)) for p in pieces])


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


@dataclass(frozen=True, slots=True)
class _Links:
    """Who sees what: one entry for each piece of each share, share after share.

    Attributes:
        share, start, length: the share's number, and of the piece.
        key: equal for equal pieces only.
        at: the piece's first entry in the block table.
        blocks: the block table.
    """

    share: Longs
    key: Longs
    start: Longs
    length: Longs
    at: Longs
    blocks: Ints


def plan_work(shares: Sequence[Share], most: TileRows) -> Work:
    """Cut a batch into items of at most so many rows; the shares' rows follow one another.

    Items come longest first, so that the last ones to start are short.
    """
    rows = np.array([share.count for share in shares], np.int64)
    pieces = np.array([len(share.blocks) for share in shares], np.int64)
    speaking = np.array([share.speaking for share in shares], np.bool_)
    first_row, first_piece = _before(rows), _before(pieces)
    links = _links(shares, pieces)
    # The last piece is the one that rows are written to.
    last = np.repeat(first_piece + pieces - 1, rows)
    alone = ~speaking & (rows >= max(most.reading, 2))
    reading = _reading_items(alone, rows, pieces, first_row, first_piece, links, most.reading)
    in_chain = alone[links.share]
    chains = np.stack((links.at, links.start, links.length), 1)[in_chain]
    # What is left: a row of the batch for each link and each of its share's rows.
    link = np.flatnonzero(~in_chain)
    count = rows[links.share[link]]
    of_row = np.repeat(link, count)
    row = np.repeat(first_row[links.share[link]], count) + _within(count)
    small, large, row_table, parts, part_count = _cut(links, speaking, of_row, row, last.size, most)
    return Work(
        rows=row_table,
        blocks=links.blocks,
        small=small,
        large=large,
        reading=reading,
        links=chains.astype(np.int32),
        merged=np.flatnonzero(np.repeat(~alone, rows)).astype(np.int32),
        parts=parts,
        part_first=_before(part_count).astype(np.int32),
        part_count=part_count.astype(np.int32),
        piece_start=links.start[last].astype(np.int32),
        piece_blocks=links.at[last].astype(np.int32),
        partials=len(parts),
    )


def _links(shares: Sequence[Share], pieces: Longs) -> _Links:
    """All links, and the blocks of all pieces; those of a shared piece stand there once."""
    fields = _joined([share.fields for share in shares], (0, 4))
    key, start, length, size = fields.T
    key = np.where(key < 0, key.max(initial=0) + 1 + np.arange(len(key)), key)
    _, first, known = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)  # by first mention
    at = np.empty_like(first)
    at[order] = _before(size[first[order]])
    blocks = [piece for share in shares for piece in share.blocks]
    return _Links(
        share=np.repeat(np.arange(len(shares)), pieces),
        key=key,
        start=start,
        length=length,
        at=at[known],
        blocks=_joined([blocks[number] for number in first[order].tolist()], (0,)).astype(np.int32),
    )


def _reading_items(
    alone: Bools,
    rows: Longs,
    pieces: Longs,
    first_row: Longs,
    first_piece: Longs,
    links: _Links,
    most: int,
) -> Ints:
    """Items of the shares that read `alone`, those that see most first."""
    tiles = np.where(alone, -(-rows // most), 0)
    share = np.repeat(np.arange(len(rows)), tiles)
    done = _within(tiles) * most
    size = np.minimum(rows[share] - done, most)
    context = np.bincount(links.share, links.length, minlength=len(rows)).astype(np.int64)
    seen = context[share] - (rows[share] - done - size)
    first_link = _before(np.where(alone, pieces, 0))
    items = np.stack((first_row[share] + done, size, first_link[share], pieces[share]), 1)
    return items[np.argsort(-seen, kind="stable")].astype(np.int32)


def _cut(
    links: _Links, speaking: Bools, link: Longs, row: Longs, total: int, most: TileRows
) -> tuple[Ints, Ints, Ints, Ints, Longs]:
    """Small and large items, their rows, and each row's partials: all of them, and how many.

    Args:
        links, speaking: of all shares.
        link, row: which rows of the batch are to see which links.
        total: rows of the batch.
        most: rows of a tile.
    """
    speaks = speaking[links.share]
    # Speaking rows read a piece in stretches, others in one: they are many and fill the device.
    step = np.where(links.length <= LONG, CHUNK, LONG_CHUNK)
    step = np.where(speaks, step, links.length)
    stretches = -(-links.length // step)
    column = _before(stretches)  # place of a link's first partial among those of its row
    column -= column[np.searchsorted(links.share, links.share)]
    # A group is everybody who reads one piece in one manner, in order of first mention.
    group_of = 2 * links.key + speaks
    _, first, group = np.unique(group_of[link], return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))[group]
    row_table = row[np.argsort(rank, kind="stable")]
    leader = link[np.sort(first)]  # a link of each group
    members = np.bincount(rank, minlength=len(leader))
    # Tiles of a group, then the stretches of each tile.
    # A tall tile that is mostly empty takes longer than two that are full.
    height = np.where(members > 2 * most.small, most.large, most.small)
    tiles = -(-members // height)
    tile_group = np.repeat(np.arange(len(leader)), tiles)
    done = _within(tiles) * height[tile_group]
    tile_size = np.minimum(members[tile_group] - done, height[tile_group])
    tile_first = _before(members)[tile_group] + done
    items = stretches[leader[tile_group]]
    tile = np.repeat(np.arange(len(tile_group)), items)
    number, of = _within(items), leader[tile_group[tile]]
    size, entry = tile_size[tile], tile_first[tile]
    begin = number * step[of]
    table = np.stack(
        (
            entry,
            size,
            links.at[of],
            links.start[of],
            begin,
            np.minimum(begin + step[of], links.length[of]),
            _before(size),
        ),
        1,
    )
    owner = row_table[np.repeat(entry, size) + _within(size)]
    part_count = np.bincount(owner, minlength=total)
    parts = np.empty(len(owner), np.int32)
    place = _before(part_count)[owner] + np.repeat(column[of] + number, size)
    parts[place] = np.arange(len(owner), dtype=np.int32)
    few = size <= most.small
    return (
        _longest_first(table[few]),
        _longest_first(table[~few]),
        row_table.astype(np.int32),
        parts,
        part_count,
    )


def _longest_first(items: Longs) -> Ints:
    return items[np.argsort(items[:, 4] - items[:, 5], kind="stable")].astype(np.int32)


def _before(counts: Longs) -> Longs:
    """The sum of all counts before each."""
    sums: Longs = np.cumsum(counts) - counts
    return sums


def _within(counts: Longs) -> Longs:
    """0, 1, … below each count, one after the other."""
    numbers: Longs = np.arange(counts.sum()) - np.repeat(_before(counts), counts)
    return numbers


def _joined(arrays: Sequence[np.ndarray], empty: tuple[int, ...]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(empty, np.int64)
