"""Attention over a tree of shared context: what many rows see is read once for all of them.

The context of a span is a chain of pieces (a scene, a persona, its own tokens). Each piece is
attended by itself, for all rows that see it, and a row's partial results are merged by the
logarithms of their sums (Hydragen, arXiv 2402.05099; ChunkAttention, arXiv 2402.15220). The heads
of a group are rows of one product, so a scene's keys meet speakers × group rows at once.

Sums differ in their last bits with the company a row has; `kernels.cpu.attention` is the slower
twin whose sums do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from kernels.reference import SpanLike

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

#: Below this a copy of the context costs less than a call of its own.
_LONG = 256
#: A piece with so many rows has work enough for a call of its own, and fills it without padding.
_MANY_ROWS = 32

Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Job:
    """Rows that attend to one stretch of context.

    Attributes:
        rows: batch rows.
        slots: of the context, in order.
        causal: row i sees the first i + 1 slots only, and there are as many slots as rows.
        sight: the slots [from, to) that each row sees; () if it is all, or what `causal` says.
    """

    rows: tuple[int, ...]
    slots: Runs
    causal: bool
    sight: tuple[tuple[int, int], ...] = ()

    @property
    def length(self) -> int:
        """Tokens of context."""
        return sum(length for _, length in self.slots)


@dataclass(frozen=True, slots=True)
class _Call:
    """Jobs of similar size, padded to one size and computed in one call.

    Attributes:
        rows: int64 [jobs · height], batch rows, a job's first row repeated as padding.
        jobs, height, width: number of jobs, rows and tokens of each.
        view: first slot, if the context is read in place.
        slots: int64 [jobs · width] otherwise.
        mask: float32 [jobs, 1, 1 or height, width], -inf over what is not seen; None if all is, or
            if it is causal.
        causal: see `_Job`; padding comes after what the true rows see.
    """

    rows: torch.Tensor
    jobs: int
    height: int
    width: int
    view: int | None
    slots: torch.Tensor | None
    mask: torch.Tensor | None
    causal: bool


@dataclass(slots=True)
class _Shared:
    """A piece and everybody who sees all of it."""

    runs: Runs
    rows: list[int] = field(default_factory=list)


class TreeAttention:
    """Attention for the spans of one batch; planned once, used by every layer of one window."""

    def __init__(
        self,
        spans: Sequence[SpanLike],
        heads: int,
        kv_heads: int,
        *,
        window: int = 0,
        cap: float = 0.0,
        scale: float | None = None,
    ) -> None:
        """Plan; for the arguments see `kernels.reference.paged_attention`."""
        self._kv_heads, self._group = kv_heads, heads // kv_heads
        self._cap, self._scale = cap, scale
        total = sum(span.end - span.start for span in spans)
        parts: list[list[int]] = [[] for _ in range(total)]  # places of each row's partials
        self._calls: list[_Call] = []
        place = 0
        for batch in _batches(_jobs(spans, window)):
            call = _call(batch)
            self._calls.append(call)
            for number, job in enumerate(batch):
                for index, row in enumerate(job.rows):
                    parts[row].append(place + number * call.height + index)
            place += call.jobs * call.height
        most = max(len(places) for places in parts)
        # A row with fewer partials than others gets the dummy at the end, whose weight is nothing.
        padded = [places + [place] * (most - len(places)) for places in parts]
        self._merge = torch.tensor(padded, dtype=torch.int64).T.reshape(-1)
        self._most = most

    def __call__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attend.

        Args:
            q: [rows, heads, dim].
            keys, values: [kv_heads, slots, dim], one layer of the cache with the batch's own KV
                stored already; of q's dtype.

        Returns:
            [rows, heads · dim], of q's dtype.
        """
        rows, heads, dim = q.shape
        kv_heads, group = self._kv_heads, self._group
        folded = q.view(rows, kv_heads, group, dim).transpose(0, 1)  # [kv_heads, rows, group, dim]
        results, weights = [], []
        for call in self._calls:
            n, height = call.jobs, call.height
            k, v = self._context(call, keys), self._context(call, values)
            if call.causal:
                queries = q.index_select(0, call.rows).view(n, height, heads, dim).transpose(1, 2)
                out, weight = self._attend(queries, k, v, None, causal=True)
                results.append(out.transpose(1, 2).reshape(n * height, heads, dim))
                weights.append(weight.transpose(1, 2).reshape(n * height, heads))
                continue
            queries = folded.index_select(1, call.rows).view(kv_heads, n, height * group, dim)
            mask = call.mask
            if mask is not None and mask.shape[2] > 1:  # heads of a group are rows of their own
                mask = mask.repeat_interleave(group, 2)
            out, weight = self._attend(queries.transpose(0, 1), k, v, mask, causal=False)
            # [jobs, kv_heads, height · group, …] to rows of heads
            out = out.view(n, kv_heads, height, group, dim).permute(0, 2, 1, 3, 4)
            results.append(out.reshape(n * height, heads, dim))
            weight = weight.view(n, kv_heads, height, group).permute(0, 2, 1, 3)
            weights.append(weight.reshape(n * height, heads))
        if self._most == 1:
            return torch.cat(results).index_select(0, self._merge).view(rows, -1)
        results.append(q.new_zeros(1, heads, dim))
        weights.append(weights[0].new_full((1, heads), float("-inf")))
        shares = torch.cat(weights).index_select(0, self._merge).view(self._most, rows, heads, 1)
        partials = torch.cat(results).index_select(0, self._merge)
        partials = partials.view(self._most, rows, heads, dim)
        return (partials * shares.softmax(0)).sum(0).to(q.dtype).view(rows, -1)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of `q` [jobs, heads, rows, dim], and the logarithms of its sums, float32 [jobs,
        heads, rows].
        """
        scale = q.shape[-1] ** -0.5 if self._scale is None else self._scale
        if not self._cap:
            out, weight = _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
            return out, weight
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = self._cap * torch.tanh((q @ k.transpose(2, 3)).float() * (scale / self._cap))
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores.masked_fill_(hidden, float("-inf"))
        elif mask is not None:
            scores += mask
        weight = scores.logsumexp(-1)
        return (scores - weight[..., None]).exp().to(v.dtype) @ v, weight

    def _context(self, call: _Call, cache: torch.Tensor) -> torch.Tensor:
        """Keys or values of a call, [jobs, kv_heads, width, dim]."""
        if call.view is not None:
            return cache[:, call.view : call.view + call.width].unsqueeze(0)
        assert call.slots is not None
        copied = cache.index_select(1, call.slots)
        return copied.view(self._kv_heads, call.jobs, call.width, -1).transpose(0, 1)


def _jobs(spans: Sequence[SpanLike], window: int) -> list[_Job]:
    """What is to be attended: shared pieces once, each span's own part by itself.

    A lone row gains nothing from pieces; its whole context is one job.
    """
    if len(spans) == 1 and spans[0].end - spans[0].start == 1:
        (span,) = spans
        begin = max(0, span.context - window) if window else 0
        return [_Job((span.start,), _cut(span.runs, begin, span.context), causal=False)]
    shared: dict[int, _Shared] = {}
    jobs: list[_Job] = []
    for span in spans:
        rows = range(span.start, span.end)
        seen = 0  # context that a job of this span's own covers
        if window and window < span.context:
            edge, seen = _window_edge(span, window)
            jobs.append(edge)
        at = 0
        for key, length in span.shared:
            if at >= seen:
                if key not in shared:
                    shared[key] = _Shared(_cut(span.runs, at, at + length))
                shared[key].rows.extend(rows)
            at += length
        at = max(at, seen)
        first = span.context if len(rows) == 1 else span.context - len(rows)
        if at < first:
            jobs.append(_Job(tuple(rows), _cut(span.runs, at, first), causal=False))
        if at <= first < span.context:
            jobs.append(_Job(tuple(rows), _cut(span.runs, first, span.context), causal=True))
    jobs += [_Job(tuple(piece.rows), piece.runs, causal=False) for piece in shared.values()]
    return jobs


def _window_edge(span: SpanLike, window: int) -> tuple[_Job, int]:
    """What a window hides from some rows of a span and not from others, up to the end of the piece
    in which the last row's window begins; and where that is.
    """
    count = span.end - span.start
    first = span.context - count  # of the span's own rows
    borders = list(accumulate(length for _, length in span.shared))
    if count > 1:
        borders.append(first)
    border = next((at for at in borders if at > span.context - window), span.context)
    begin = max(0, first + 1 - window)
    sight = tuple(
        (max(begin, row + 1 - window) - begin, min(border, row + 1) - begin)
        for row in range(first, span.context)
    )
    rows = tuple(range(span.start, span.end))
    return _Job(rows, _cut(span.runs, begin, border), causal=False, sight=sight), border


def _batches(jobs: Sequence[_Job]) -> list[list[_Job]]:
    """Jobs that are computed together: large ones alone, small ones with others of their size."""
    alone: list[list[_Job]] = []
    sizes: dict[tuple[bool, int, int], list[_Job]] = {}
    for job in jobs:
        if job.length * len(job.rows) >= _LONG * _MANY_ROWS or (
            job.length >= _LONG and len(job.slots) == 1
        ):
            alone.append([job])
        else:
            size = job.causal, _size(len(job.rows)), _size(job.length)
            sizes.setdefault(size, []).append(job)
    return alone + list(sizes.values())


def _call(jobs: list[_Job]) -> _Call:
    height = max(len(job.rows) for job in jobs)
    width = max(job.length for job in jobs)
    causal = jobs[0].causal
    rows = [row for job in jobs for row in (*job.rows, *job.rows[:1] * (height - len(job.rows)))]
    view = slots = None
    if len(jobs) == 1 and len(jobs[0].slots) == 1:
        view = jobs[0].slots[0][0]
    else:
        flat: list[int] = []
        for job in jobs:
            own = [slot for first, length in job.slots for slot in range(first, first + length)]
            flat += own + own[-1:] * (width - len(own))
        slots = torch.tensor(flat)
    mask = None if causal else _mask(jobs, height, width)
    return _Call(torch.tensor(rows), len(jobs), height, width, view, slots, mask, causal)


def _mask(jobs: list[_Job], height: int, width: int) -> torch.Tensor | None:
    """See `_Call.mask`."""
    if any(job.sight for job in jobs):
        sights = [job.sight or ((0, job.length),) * len(job.rows) for job in jobs]
        seen = [(*sight, *sight[:1] * (height - len(sight))) for sight in sights]
    elif any(job.length < width for job in jobs):
        seen = [((0, job.length),) for job in jobs]
    else:
        return None
    begin, end = torch.tensor(seen)[..., None].unbind(2)  # each [jobs, rows, 1]
    column = torch.arange(width)
    hidden = (column < begin) | (column >= end)
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf")).unsqueeze(1)


def _size(number: int) -> int:
    """A class of sizes: numbers of one class differ by less than half."""
    step = max(1, 1 << max(0, number.bit_length() - 2))
    return -(-number // step) * step


def _cut(runs: Runs, begin: int, end: int) -> Runs:
    """The part [begin, end) of what `runs` hold one after another."""
    result = []
    at = 0
    for first, length in runs:
        low, high = max(begin - at, 0), min(end - at, length)
        if low < high:
            result.append((first + low, high - low))
        at += length
    return tuple(result)
