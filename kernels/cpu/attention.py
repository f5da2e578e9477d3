"""Causal attention over a paged cache, as batched matrix products.

Every row's result is the same to the bit whatever is computed beside it, however its prompt was cut
into steps and wherever its KV lies: sums run over tiles that are counted from the start of the
context, tile by tile, and products have sizes at which BLAS treats all rows alike.
"""

from collections.abc import Sequence

import torch

from kernels.cpu.panels import TILE, AttentionPlan, Panel, Product
from kernels.reference import SpanLike


class PagedAttention:
    """Attention for the spans of one batch; planned once, used by every layer."""

    def __init__(
        self,
        spans: Sequence[SpanLike],
        heads: int,
        kv_heads: int,
        slots: int,
        *,
        window: int = 0,
        cap: float = 0.0,
        scale: float | None = None,
    ) -> None:
        """Plan for a cache of `slots` slots; the rest as in `kernels.reference.paged_attention`."""
        group = heads // kv_heads
        plan = AttentionPlan(spans, group, window)
        self._panels = plan.panels
        self._kv_heads = kv_heads
        self._cap, self._scale = cap, scale
        head = torch.arange(kv_heads)[:, None]
        # Indices into tensors flattened to rows of one head each: q and the result
        # [rows · heads, dim], keys and values [kv_heads · slots, dim].
        row, member = plan.rows // group, plan.rows % group
        self._queries = (row * heads + head * group + member).view(-1)
        places = head * len(plan.rows) + plan.places
        self._result = places.view(kv_heads, -1, group).transpose(0, 1).reshape(-1)
        self._copies = (head * slots + plan.copies[:, None]).view(-1)

    def __call__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attend.

        Args:
            q: float32 [rows, heads, dim].
            keys, values: float32 [kv_heads, slots, dim], one layer of the cache, in which the
                batch's own KV is stored already.

        Returns:
            float32 [rows, heads · dim].
        """
        heads, dim = self._kv_heads, q.shape[2]
        scale = dim**-0.5 if self._scale is None else self._scale
        queries = q.reshape(-1, dim).index_select(0, self._queries).mul_(scale)
        queries = queries.view(heads, -1, dim)
        out = torch.empty_like(queries)
        copies = [
            cache.view(-1, dim).index_select(0, self._copies).view(-1, heads, TILE, dim)
            for cache in (keys, values)
        ]
        for panel in self._panels:
            mine = queries[:, panel.start : panel.end]
            weights = _weights(panel, mine, keys, copies[0], self._cap)
            _sum(panel, weights, values, copies[1], out[:, panel.start : panel.end])
        return out.view(-1, dim).index_select(0, self._result).view(q.shape[0], -1)


def _weights(
    panel: Panel, queries: torch.Tensor, keys: torch.Tensor, copies: torch.Tensor, cap: float
) -> torch.Tensor:
    """How much each row of `queries` [kv_heads, rows, dim] attends to each token of its context,
    [kv_heads, rows, columns].
    """
    heads, rows, _ = queries.shape
    scores = queries.new_empty(heads, rows, panel.columns)
    for product in panel.scores:
        mine = queries[:, product.start : product.end]
        target = scores[:, product.start : product.end].narrow(2, product.column, product.width)
        context = _context(product, keys, copies).transpose(1, 2)
        if product.parts == 1:
            torch.bmm(mine, context, out=target)
        else:
            target.copy_(_together(torch.bmm(_apart(mine, product), context), product))
    if cap:
        scores.div_(cap).tanh_().mul_(cap)
    # Also covers what no product has written: the tail of contexts shorter than the longest.
    scores[:, :, panel.sure :].masked_fill_(panel.hidden, float("-inf"))
    return scores.softmax(-1)


def _sum(
    panel: Panel,
    weights: torch.Tensor,
    values: torch.Tensor,
    copies: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write the weighted sums of values to `out` [kv_heads, rows, dim]."""
    for product in panel.sums:
        target = out[:, product.start : product.end]
        share = weights[:, product.start : product.end].narrow(2, product.column, TILE)
        context = _context(product, values, copies)
        if product.parts == 1:
            part = torch.bmm(share, context)
        else:
            part = _together(torch.bmm(_apart(share, product), context), product)
        if product.column:
            target += part
        else:
            target.copy_(part)


def _context(product: Product, cache: torch.Tensor, copies: torch.Tensor) -> torch.Tensor:
    """What a product reads, of `cache` [kv_heads, slots, dim] or `copies` [tiles, kv_heads, TILE,
    dim]: [kv_heads, width, dim], or [parts · kv_heads, TILE, dim].
    """
    if product.copied:
        return copies[product.first : product.first + product.parts].flatten(0, 1)
    return cache.narrow(1, product.first, product.width)


def _apart(rows: torch.Tensor, product: Product) -> torch.Tensor:
    """`rows` [kv_heads, rows, n] as [parts · kv_heads, rows of a part, n]."""
    heads, _, width = rows.shape
    return rows.reshape(heads, product.parts, -1, width).transpose(0, 1).flatten(0, 1)


def _together(rows: torch.Tensor, product: Product) -> torch.Tensor:
    """The inverse of `_apart`."""
    height, width = rows.shape[1:]
    return rows.view(product.parts, -1, height, width).transpose(0, 1).flatten(1, 2)
