"""Counters of one engine, and the snapshot others may read."""

from collections import Counter, deque
from collections.abc import Iterable

from engine.blocks import BlockPool
from engine.measures import Measures
from engine.outputs import FinishReason, Usage
from engine.prefixes import PrefixTree
from engine.request import Request
from engine.scheduler import Scheduler

_WINDOW = 1024  # steps the step-time figures look back on


class Stats:
    """What has happened since the engine was made. Written by the engine's thread."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.steps = 0
        self.refused: Counter[str] = Counter()  # by code of the error
        self.ended: dict[FinishReason, int] = {"stop": 0, "length": 0, "cancelled": 0, "failed": 0}
        self.measures = Measures()
        self.batch_used = 0
        self.batch_possible = 0
        self._gaps: list[float] = []  # seconds, of the step under way
        self._step_ms: deque[float] = deque(maxlen=_WINDOW)
        self._batches: deque[tuple[int, int]] = deque(maxlen=_WINDOW)

    def stepped(self, used: int, drawn: int, milliseconds: float, possible: int) -> None:
        """Count one step, in which `used` sequences advanced, `drawn` of them by a token that is
        new, and `possible` could have advanced.
        """
        self.generated_tokens += drawn
        if self._gaps:
            self.measures.next_tokens(self._gaps)
            self._gaps.clear()
        batch = (used, max(used, possible))
        self._batches.append(batch)
        self.batch_used += batch[0]
        self.batch_possible += batch[1]
        self.steps += 1
        self._step_ms.append(milliseconds)

    def has_token(self, request: Request, now: float) -> None:
        """Note when a request got a token, in the step under way."""
        if request.last_token_at is None:
            request.first_token_at = now
            waited = now - request.arrived
            self.measures.first_token(waited, request.priority, request.expected_s)
        else:
            self._gaps.append(now - request.last_token_at)
        request.last_token_at = now

    def finished(self, reason: FinishReason, usage: Usage, priority: int) -> None:
        """Count the end of one request."""
        self.ended[reason] += 1
        self.measures.finished(usage, priority)
        if usage.scheduled is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens

    def snapshot(self, scheduler: Scheduler, pool: BlockPool, tree: PrefixTree) -> dict[str, float]:
        """All gauges by name. Call from the engine's thread; hand the result to anyone.

        `blocks_pinned` are those of nodes that stay though nobody uses them.
        `blocks_cached` counts history blocks and prefix nodes that nobody holds or pinned;
        `fragmentation` is the share of unfilled slots in blocks that hold any KV, `kv_use` that of
        blocks that somebody needs; `batch_efficiency` compares the sequences in recent steps with
        those that could have been there.
        """
        reclaimable = tree.reclaimable()
        times = sorted(self._step_ms)
        return {
            "blocks_total": pool.size,
            "blocks_free": pool.free,
            "blocks_held": pool.held - reclaimable,
            "blocks_cached": pool.cached + reclaimable,
            "blocks_pinned": tree.pinned(),
            "running": len(scheduler.slots.running),
            "waiting": len(scheduler.waiting),
            "parked": len(scheduler.parked),
            "parks": scheduler.parks,
            "preemptions": scheduler.preemptions,
            "swaps": scheduler.swaps,
            "prefill_tokens_computed": scheduler.prefill_computed,
            "prefill_tokens_ideal": scheduler.prefill_ideal,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "prefix_hit_rate": self.cached_tokens / max(self.prompt_tokens, 1),
            "fragmentation": _fragmentation(scheduler.holders, tree, pool),
            "generated_tokens": self.generated_tokens,
            "steps": self.steps,
            "step_ms_last": self._step_ms[-1] if times else 0.0,
            "step_ms_mean": sum(times) / len(times) if times else 0.0,
            "step_ms_p99": times[int(len(times) * 0.99)] if times else 0.0,
            "requests_finished": self.ended["stop"] + self.ended["length"],
            "requests_cancelled": self.ended["cancelled"],
            "requests_failed": self.ended["failed"],
            "requests_refused": self.refused.total(),
            **{f"refused_{code}": count for code, count in list(self.refused.items())},
            "kv_use": (pool.held - reclaimable) / pool.size,
            "batch_used": self.batch_used,
            "batch_possible": self.batch_possible,
            "batch_efficiency": _share(self._batches),
        }


def _share(batches: Iterable[tuple[int, int]]) -> float:
    pairs = list(batches)
    return sum(used for used, _ in pairs) / max(sum(possible for _, possible in pairs), 1)


def _fragmentation(running: list[Request], tree: PrefixTree, pool: BlockPool) -> float:
    lengths = [request.computed for request in running] + [node.computed for node in tree.resident]
    slots = sum(pool.blocks_for(length) for length in lengths) * pool.block_size
    return 1 - sum(lengths) / slots if slots else 0.0
