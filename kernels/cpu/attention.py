"""Causal attention over a paged cache, as batched matrix products.

The query heads that share a KV head become rows of one product, and the context is cut into tiles of fixed
length, counted from its first token. So the sums behind a row's result have one order, whatever was computed
beside it, however its prompt was cut into steps and wherever its KV lies: the result is the same to the bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.reference import SpanLike

#: Tokens of context per product. Long enough to be worth a call, short enough for BLAS to sum in one go.
_TILE = 256
#: The last tile is padded to a multiple of this, and rows to a multiple of the next: sizes at which BLAS
#: computes each element in the same way.
_COLUMN_STEP = 64
_ROW_STEP = 4
#: Query rows per product; bounds the scores held at once, which stay in the second-level cache.
_QUERY_ROWS = 64


@dataclass(frozen=True, slots=True)
class _Tile:
    """`width` tokens of context from `first`, a slot of the cache or, if `gathered`, a place in the copies."""

    first: int
    width: int
    gathered: bool


@dataclass(frozen=True, slots=True)
class _Item:
    """Query rows [start, end) that see `visible` tokens at most, the first of them `end - start - 1` fewer."""

    start: int
    end: int
    visible: int
    tiles: tuple[_Tile, ...]

    @property
    def columns(self) -> int:
        """Width of the scores, padding included."""
        return sum(tile.width for tile in self.tiles)


class PagedAttention:
    """Attention for the spans of one batch; planned once, used by every layer."""

    def __init__(self, spans: Sequence[SpanLike], heads: int, kv_heads: int, head_dim: int) -> None:
        self._kv_heads, self._group, self._dim = kv_heads, heads // kv_heads, head_dim
        self._scale = head_dim**-0.5
        self._gather: list[int] = []
        self._items: list[_Item] = []
        for span in spans:
            tiles = self._cut(span)
            for start in range(span.start, span.end, _QUERY_ROWS):
                end = min(start + _QUERY_ROWS, span.end)
                visible = span.context - (span.end - end)
                self._items.append(_Item(start, end, visible, _up_to(tiles, visible)))
        self._gathered = torch.tensor(self._gather, dtype=torch.int64)
        rows = max((item.end - item.start for item in self._items), default=0)
        # Additive mask of an item's rightmost columns: row i sees column j ≤ i.
        seen = torch.ones(rows, rows + _COLUMN_STEP, dtype=torch.bool).tril()
        self._mask = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
        self._mask = self._mask.repeat_interleave(self._group, 0)
        widest = max((self._product_rows(item) * item.columns for item in self._items), default=0)
        self._scores = torch.empty(kv_heads * widest)

    def __call__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attend.

        Args:
            q: float32 [rows, heads, dim].
            keys, values: float32 [kv_heads, slots, dim], one layer of the cache with the batch's own KV
                stored already.

        Returns:
            float32 [rows, heads · dim].
        """
        rows, group, kv_heads, dim = q.shape[0], self._group, self._kv_heads, self._dim
        folded = q.new_zeros(kv_heads, rows * group + _ROW_STEP, dim)
        inner = folded[:, : rows * group].view(kv_heads, rows, group, dim)
        torch.mul(q.view(rows, kv_heads, group, dim).transpose(0, 1), self._scale, out=inner)
        out = torch.empty_like(folded)
        copies = keys.index_select(1, self._gathered), values.index_select(1, self._gathered)
        for item in self._items:
            self._attend(item, folded, out, keys, values, *copies)
        result = out[:, : rows * group].view(kv_heads, rows, group, dim)
        return result.transpose(0, 1).reshape(rows, -1)

    def _attend(
        self,
        item: _Item,
        folded: torch.Tensor,
        out: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_copies: torch.Tensor,
        value_copies: torch.Tensor,
    ) -> None:
        """One item. Rows borrowed from the right to fill up a product are computed with the wrong context;
        their own items come later and write over them.
        """
        first, rows = item.start * self._group, self._product_rows(item)
        queries, result = folded[:, first : first + rows], out[:, first : first + rows]
        columns = item.columns
        scores = self._scores[: self._kv_heads * rows * columns].view(self._kv_heads, rows, columns)
        at = 0
        for tile in item.tiles:
            source = key_copies if tile.gathered else keys
            context = source.narrow(1, tile.first, tile.width).transpose(1, 2)
            torch.bmm(queries, context, out=scores.narrow(2, at, tile.width))
            at += tile.width
        own = item.end - item.start
        sure = item.visible - own
        scores[:, : own * self._group, sure:] += self._mask[: own * self._group, : columns - sure]
        weights = scores.softmax(-1)
        at = 0
        for tile in item.tiles:
            source = value_copies if tile.gathered else values
            context = source.narrow(1, tile.first, tile.width)
            share = weights.narrow(2, at, tile.width)
            if at:
                result.baddbmm_(share, context)
            else:
                torch.bmm(share, context, out=result)
            at += tile.width

    def _product_rows(self, item: _Item) -> int:
        return _round_up((item.end - item.start) * self._group, _ROW_STEP)

    def _cut(self, span: SpanLike) -> tuple[_Tile, ...]:
        """Tiles of a span's context: in place where a whole tile lies in one run, copied elsewhere.

        A tile that is not full is always copied: what follows it in the cache is somebody else's. It is
        padded with its own last token, which the mask hides.
        """
        tiles: list[_Tile] = []
        runs = iter(span.runs)
        first, left = next(runs)
        for start in range(0, span.context, _TILE):
            length = min(_TILE, span.context - start)
            if length == _TILE and left >= _TILE:
                tiles.append(_Tile(first, _TILE, gathered=False))
                first, left = first + _TILE, left - _TILE
                continue
            width = _round_up(length, _COLUMN_STEP)
            tiles.append(_Tile(len(self._gather), width, gathered=True))
            missing = length
            while missing:
                if not left:
                    first, left = next(runs)
                count = min(left, missing)
                self._gather.extend(range(first, first + count))
                first, left, missing = first + count, left - count, missing - count
            self._gather.extend([self._gather[-1]] * (width - length))
        return tuple(tiles)


def _up_to(tiles: tuple[_Tile, ...], visible: int) -> tuple[_Tile, ...]:
    """The tiles that hold the first `visible` tokens, the last one no wider than it must be."""
    full, rest = divmod(visible, _TILE)
    if not rest:
        return tiles[:full]
    last = tiles[full]
    return (*tiles[:full], _Tile(last.first, _round_up(rest, _COLUMN_STEP), last.gathered))


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
