"""Plans attention: which query rows are multiplied with which stretch of the cache.

Context is cut into tiles of fixed length, counted from its first token. Rows are put in order of
the tiles they read, so that those that read the same tile (a scene, a persona) stand side by side
and share one product.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kernels.reference import SpanLike

#: Tokens of context per sum. BLAS libraries split longer sums in ways that depend on the length;
#: 192 is the shortest block of those seen.
TILE = 192
#: Rows of a product come in multiples of this: other numbers make BLAS compute some differently.
_ROW_STEP = 4
#: Rows of a panel; bounds the scores held at once, so that they stay in the second-level cache.
_PANEL_ROWS = 192

#: (first slot, length) of consecutive slots that together hold a tile, or its beginning.
_Tile = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Rows [start, end) of a panel times `width` tokens of context.

    Attributes:
        start, end: rows, counted from the panel's first.
        column: where in the context.
        first: a slot of the cache or, if `copied`, the number of a copied tile.
        width: tokens, a multiple of `TILE`; one tile if `copied`.
        copied: whether the tokens are read from copied tiles.
        parts: above 1, the rows are that many equal parts and part i reads copied tile `first` + i
            instead of all the same one.
    """

    start: int
    end: int
    column: int
    first: int
    width: int
    copied: bool
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows computed together.

    Attributes:
        start, end: their places among all rows of the plan.
        columns: longest context in whole tiles, each counted from the first tile its item sees.
        sure: context that every row sees.
        hidden: bool [end - start, columns - sure], what a row does not see of the rest.
        scores: products of queries and keys.
        sums: products of weights and values, of one tile each, in order of context.
    """

    start: int
    end: int
    columns: int
    sure: int
    hidden: torch.Tensor
    scores: tuple[Product, ...]
    sums: tuple[Product, ...]


@dataclass(frozen=True, slots=True)
class _Item:
    """Batch rows [start, end) of one span; the last sees the first `visible` tokens of `tiles`,
    each other one fewer.
    """

    start: int
    end: int
    visible: int
    tiles: tuple[_Tile, ...]


class AttentionPlan:
    """What is read by whom in one batch.

    A plan row is one query head of one batch row; the heads that share a KV head are the rows of
    that KV head.

    Attributes:
        panels: all the work.
        copies: int64 [tiles, TILE], slots to be copied before it starts.
        rows: int64 [plan rows], the batch row of each, times group plus the head within the group.
        places: int64 [batch rows · group], the plan row of each of those.
    """

    def __init__(self, spans: Sequence[SpanLike], group: int, window: int = 0) -> None:
        """Plan for `group` heads per KV head; a row sees `window` tokens, its own too; 0 is all."""
        cut = _items(spans, max(1, _PANEL_ROWS // group), window)
        items = sorted(cut, key=lambda item: item.tiles)
        self._group = group
        self._window = window
        self._copies: list[int] = []
        self._copied: dict[_Tile, int] = {}
        self._rows: list[int] = []
        self.panels: list[Panel] = []
        while items:
            count, rows = 1, self._height(items[0])
            while count < len(items) and rows + self._height(items[count]) <= _PANEL_ROWS:
                rows += self._height(items[count])
                count += 1
            self.panels.append(self._panel(items[:count]))
            del items[:count]
        self.copies = torch.tensor(self._copies, dtype=torch.int64).view(-1, TILE)
        self.rows = torch.tensor(self._rows, dtype=torch.int64)
        # A filling row repeats its item's first row and precedes nothing: writing places backwards
        # leaves the true one.
        self.places = torch.empty(
            sum(span.end - span.start for span in spans) * group, dtype=torch.int64
        )
        self.places[self.rows.flip(0)] = torch.arange(len(self._rows)).flip(0)

    def _height(self, item: _Item) -> int:
        return -(-(item.end - item.start) * self._group // _ROW_STEP) * _ROW_STEP

    def _panel(self, items: list[_Item]) -> Panel:
        start, visible = len(self._rows), []
        bounds = [0]
        for item in items:
            own = range(item.start * self._group, item.end * self._group)
            filling = self._height(item) - len(own)
            self._rows += [*own, *[own[0]] * filling]
            first = item.visible - (item.end - item.start) + 1
            seen = [first + row // self._group for row in range(len(own))]
            visible += seen + seen[:1] * filling
            bounds.append(bounds[-1] + self._height(item))
        columns = max(len(item.tiles) for item in items) * TILE
        ends = torch.tensor(visible)[:, None]
        windowed = self._window and max(visible) > self._window
        sure = 0 if windowed else min(visible)
        column = torch.arange(sure, columns)
        hidden = column >= ends
        if windowed:
            hidden |= column < ends - self._window
        sums = tuple(self._sums(items, bounds))
        return Panel(start, start + bounds[-1], columns, sure, hidden, tuple(_joined(sums)), sums)

    def _sums(self, items: list[_Item], bounds: list[int]) -> Iterator[Product]:
        """Products of one tile each; neighbours with the same tile share one, and neighbours whose
        own tiles were copied one behind the other are parts of one.
        """
        for number in range(max(len(item.tiles) for item in items)):
            last: Product | None = None
            for index, item in enumerate(items):
                if number >= len(item.tiles):
                    continue
                first, copied = self._place(item.tiles[number])
                start, end = bounds[index], bounds[index + 1]
                now = Product(start, end, number * TILE, first, TILE, copied)
                joined = last and _beside(last, now)
                if last and not joined:
                    yield last
                last = joined or now
            if last:
                yield last

    def _place(self, tile: _Tile) -> tuple[int, bool]:
        """Where products find a tile: in the cache if it is whole and lies in one piece there.

        A tile that is not whole is copied too: what follows it in the cache is somebody else's. It
        is filled up with its own last token, which nobody sees.
        """
        if tile[0][1] == TILE:
            return tile[0][0], False
        if tile not in self._copied:
            self._copied[tile] = len(self._copied)
            for first, length in tile:
                self._copies.extend(range(first, first + length))
            self._copies.extend(self._copies[-1:] * (-len(self._copies) % TILE))
        return self._copied[tile], True


def _items(spans: Sequence[SpanLike], most: int, window: int) -> Iterator[_Item]:
    """Cut spans into items of at most `most` batch rows, without the tiles that they do not see.

    Leaving out tiles leaves a row's bits as they are: it would add their zeros.
    """
    for span in spans:
        tiles = tuple(_tiles(span))
        for start in range(span.start, span.end, most):
            end = min(start + most, span.end)
            visible = span.context - (span.end - end)
            skipped = max(0, visible - (end - start) + 1 - window) // TILE if window else 0
            seen = tiles[skipped : -(-visible // TILE)]
            yield _Item(start, end, visible - skipped * TILE, seen)


def _tiles(span: SpanLike) -> Iterator[_Tile]:
    """The tiles of a span's context."""
    tile: list[tuple[int, int]] = []
    room = TILE
    for first, left in span.runs:
        while left:
            count = min(left, room)
            tile.append((first, count))
            first, left, room = first + count, left - count, room - count
            if not room:
                yield tuple(tile)
                tile, room = [], TILE
    if tile:
        yield tuple(tile)


def _beside(left: Product, right: Product) -> Product | None:
    """One product for the rows of two neighbours, if there is such a product."""
    if left.end != right.start or left.copied != right.copied:
        return None
    if left.parts == 1 and left.first == right.first:
        return Product(left.start, right.end, left.column, left.first, TILE, left.copied)
    # Parts must be of one size, and their tiles follow one another in the copies.
    size = (left.end - left.start) // left.parts
    follows = left.first + left.parts == right.first
    if left.copied and follows and right.end - right.start == size == _ROW_STEP:
        return Product(left.start, right.end, left.column, left.first, TILE, True, left.parts + 1)
    return None


def _joined(sums: tuple[Product, ...]) -> Iterator[Product]:
    """The same products with those of the same rows and of consecutive tokens made one."""
    open_ends: dict[tuple[int, int], Product] = {}
    for product in sums:
        rows = product.start, product.end
        last = open_ends.get(rows)
        if (
            last
            and not (last.copied or product.copied)
            and last.first + last.width == product.first
            and last.column + last.width == product.column
        ):
            width = last.width + product.width
            open_ends[rows] = Product(*rows, last.column, last.first, width, copied=False)
        else:
            if last:
                yield last
            open_ends[rows] = product
    yield from open_ends.values()
