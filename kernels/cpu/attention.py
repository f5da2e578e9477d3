"""Causal attention over a paged cache, as batched matrix products.

The query heads that share a KV head become rows of one product, and the context is cut into tiles
of fixed length, counted from its first token. So the sums behind a row's result have one order,
whatever was computed beside it, however its prompt was cut into steps and wherever its KV lies: the
result is the same to the bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.reference import SpanLike

#: Tokens of context per sum. BLAS libraries split longer sums in ways that depend on the length;
#: 192 is the shortest block of those seen.
_TILE = 192
#: The last tile is padded to a multiple of this, and rows to a multiple of the next: sizes at which
#: BLAS computes each element in the same way.
_COLUMN_STEP = 64
_ROW_STEP = 4
#: Query rows per product; bounds the scores held at once, which stay in the second-level cache.
_QUERY_ROWS = 64


@dataclass(frozen=True, slots=True)
class _Piece:
    """`width` consecutive tokens of context from `first`, which is a slot of the cache or, if
    `copied`, a place in the copies.
    """

    first: int
    width: int
    copied: bool


@dataclass(frozen=True, slots=True)
class _Item:
    """Query rows [start, end), of which the last sees `visible` tokens and each other one fewer."""

    start: int
    end: int
    visible: int
    tiles: tuple[_Piece, ...]
    stretches: tuple[_Piece, ...]  # the same context with tiles that follow one another joined
    columns: int  # width of the scores, padding included


class PagedAttention:
    """Attention for the spans of one batch; planned once, used by every layer."""

    def __init__(self, spans: Sequence[SpanLike], heads: int, kv_heads: int, head_dim: int) -> None:
        self._group = heads // kv_heads
        self._scale = head_dim**-0.5
        copies: list[int] = []
        self._items: list[_Item] = []
        for span in spans:
            tiles = _cut(span, copies)
            for start in range(span.start, span.end, _QUERY_ROWS):
                end = min(start + _QUERY_ROWS, span.end)
                self._items.append(_item(start, end, span.context - (span.end - end), tiles))
        self._copies = torch.tensor(copies, dtype=torch.int64)
        rows = max((item.end - item.start for item in self._items), default=0)
        # Of an item's rightmost columns, row i sees columns 0 … i. Added to the scores.
        hidden = torch.ones(rows, rows + _COLUMN_STEP, dtype=torch.bool).triu(1)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        self._mask = mask.repeat_interleave(self._group, 0)

    def __call__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attend.

        Args:
            q: float32 [rows, heads, dim].
            keys, values: float32 [kv_heads, slots, dim], one layer of the cache, in which the
                batch's own KV is stored already.

        Returns:
            float32 [rows, heads · dim].
        """
        rows, group, kv_heads, dim = q.shape[0], self._group, keys.shape[0], q.shape[2]
        # Items at the end borrow rows beyond it to fill up a product.
        folded = q.new_empty(kv_heads, rows * group + _ROW_STEP, dim)
        folded[:, rows * group :] = 0
        inner = folded[:, : rows * group].view(kv_heads, rows, group, dim)
        torch.mul(q.view(rows, kv_heads, group, dim).transpose(0, 1), self._scale, out=inner)
        out = torch.empty_like(folded)
        sources = keys, keys.index_select(1, self._copies)
        sinks = values, values.index_select(1, self._copies)
        for item in self._items:
            self._attend(item, folded, out, sources, sinks)
        result = out[:, : rows * group].view(kv_heads, rows, group, dim)
        return result.transpose(0, 1).reshape(rows, -1)

    def _attend(
        self,
        item: _Item,
        folded: torch.Tensor,
        out: torch.Tensor,
        keys: tuple[torch.Tensor, torch.Tensor],
        values: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Compute one item's rows of `out`; `keys`, `values` are (cache, copies).

        Rows borrowed from the right to fill up a product are computed with the wrong context; the
        items they belong to come later and write over them.
        """
        first, own = item.start * self._group, (item.end - item.start) * self._group
        rows = _round_up(own, _ROW_STEP)
        queries, result = folded[:, first : first + rows], out[:, first : first + rows]
        scores = queries.new_empty(folded.shape[0], rows, item.columns)
        at = 0
        for piece in item.stretches:
            context = keys[piece.copied].narrow(1, piece.first, piece.width)
            torch.bmm(queries, context.transpose(1, 2), out=scores.narrow(2, at, piece.width))
            at += piece.width
        sure = item.visible - (item.end - item.start)
        scores[:, :own, sure:] += self._mask[:own, : item.columns - sure]
        weights = scores.softmax(-1)
        at = 0
        for piece in item.tiles:
            context = values[piece.copied].narrow(1, piece.first, piece.width)
            share = weights.narrow(2, at, piece.width)
            if at:
                result.baddbmm_(share, context)
            else:
                torch.bmm(share, context, out=result)
            at += piece.width


def _cut(span: SpanLike, copies: list[int]) -> tuple[_Piece, ...]:
    """Tiles of a span's context: in place where a whole tile lies in one run, elsewhere copied by
    adding their slots to `copies`.

    A tile that is not full is always copied: what follows it in the cache is somebody else's. It is
    padded with its own last token, which the mask hides.
    """
    tiles: list[_Piece] = []
    runs = iter(span.runs)
    first, left = next(runs)
    for start in range(0, span.context, _TILE):
        length = min(_TILE, span.context - start)
        if length == _TILE and left >= _TILE:
            tiles.append(_Piece(first, _TILE, copied=False))
            first, left = first + _TILE, left - _TILE
            continue
        width = _round_up(length, _COLUMN_STEP)
        tiles.append(_Piece(len(copies), width, copied=True))
        missing = length
        while missing:
            if not left:
                first, left = next(runs)
            count = min(left, missing)
            copies.extend(range(first, first + count))
            first, left, missing = first + count, left - count, missing - count
        copies.extend(copies[-1:] * (width - length))
    return tuple(tiles)


def _item(start: int, end: int, visible: int, tiles: tuple[_Piece, ...]) -> _Item:
    """Rows that see the first `visible` tokens of a context cut into `tiles`."""
    full, rest = divmod(visible, _TILE)
    seen = list(tiles[:full])
    if rest:
        last = tiles[full]
        seen.append(_Piece(last.first, _round_up(rest, _COLUMN_STEP), last.copied))
    joined: list[_Piece] = []
    for tile in seen:
        before = joined[-1] if joined else None
        if before and before.copied == tile.copied and before.first + before.width == tile.first:
            joined[-1] = _Piece(before.first, before.width + tile.width, tile.copied)
        else:
            joined.append(tile)
    columns = sum(tile.width for tile in seen)
    return _Item(start, end, visible, tuple(seen), tuple(joined), columns)


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
