"""Runs plans on an accelerator; steps are captured once and replayed, all but the longest.

A step is launched without waiting for the one before: tokens it has to feed but nobody on the host
has seen yet are read from where the device drew them. Everything happens in order of one stream,
so a block given to somebody else is written only after the last step that reads it.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from engine.decoding.sampling import Sampled
from engine.device.drawing import Drawing
from engine.device.launched import HostDrawn, Pending
from engine.device.layout import Layout
from engine.device.tables import StepArrays, StepSize, StepTables
from engine.kv.cache import KVCache
from engine.kv.copies import copy_in_order
from engine.models.device_decoder import DeviceDecoder
from engine.plan import StatesSink, StepPlan, wanted_states
from engine.request import Request
from engine.runner import sample_spec
from kernels.gpu import sampling
from kernels.gpu.tree_attention import TreeAttention
from kernels.tree_work import CHUNK

#: Numbers of replies that are captured, besides multiples of 16.
_SMALL_GRAPHS = (1, 2, 4, 8)
#: Rows of the captured steps in which somebody reads: every 128, because products of fewer rows
#: take hardly less time. Longer ones keep the device busy while the host launches kernels.
MIXED_ROWS = tuple(range(128, 2049, 128))
#: Pieces a sequence's chain has at most in a captured step; deeper ones run uncaptured.
_DEPTH = 8
#: Buffers of drawn tokens on their way to the host; one more than steps in flight.
_RESULTS = 3


class Replayed(Protocol):
    """A recorded step."""

    def replay(self) -> None:
        """Compute it again, from what the tables hold now."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured step.

    Attributes:
        graph: to be replayed.
        logits: [samples, vocab], overwritten by each replay.
    """

    graph: Replayed
    logits: torch.Tensor


class _Again:
    """A step of a device that records nothing: replaying it is computing it."""

    def __init__(self, step: Callable[[], torch.Tensor]) -> None:
        self._step = step
        self.logits = step()

    def replay(self) -> None:
        """See `Replayed`."""
        self.logits.copy_(self._step())


class DeviceRunner:
    """Runs plans on a `DeviceDecoder`.

    Args:
        decoder: the model.
        cache: its KV, with one block more than the pool knows, which takes what padding writes.
        max_rows: most replies in a step.
        max_length: most tokens of a sequence.
        eager: capture nothing.
        mixed_rows: sizes of captured steps in which somebody reads, ascending.
    """

    def __init__(
        self,
        decoder: DeviceDecoder,
        cache: KVCache,
        max_rows: int,
        max_length: int,
        *,
        eager: bool = False,
        mixed_rows: Sequence[int] = MIXED_ROWS,
    ) -> None:
        config, device = decoder.config, decoder.device
        self._decoder = decoder
        self._cache = cache
        self._eager = eager
        self._mixed_rows = mixed_rows
        processors = (
            torch.cuda.get_device_properties(device).multi_processor_count
            if device.type == "cuda"
            else 1
        )
        self._attentions = {
            window: TreeAttention(
                config.heads,
                config.kv_heads,
                config.head_dim,
                cache.block_size,
                decoder.kv_dtype,
                processors,
                window=window,
                soft_cap=config.score_cap,
                scale=config.score_scale,
            )
            for window in set(config.windows or (0,))
        }
        trash = cache.keys.shape[2] // cache.block_size - 1
        self._layout = Layout(next(iter(self._attentions.values())).rows, trash)
        self._drawing = Drawing(config.vocab_size, max_rows, device)
        self._drawn = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._results = [
            torch.zeros(max_rows, dtype=torch.int32, pin_memory=device.type == "cuda")
            for _ in range(_RESULTS)
        ]
        self._turn = 0
        self._max_rows = max_rows
        self._graphs: dict[StepSize, _Graph] = {}
        # Large items run beside small ones, which wait for memory most of the time.
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        room = _room(max_rows, mixed_rows[-1], max_length, cache.block_size)
        self._tables = StepTables(room, device, 2)
        # Memory that captured steps share.
        self._pool = torch.cuda.graph_pool_handle() if self._side is not None else None
        self._partials = self._new_partials(self._tables.room["parts"] if not self._eager else 0)
        # What the captured steps' tables hold: whose rows, and whether their ids point to the same
        # order in which the tokens were drawn.
        self._standing: list[Request] = []
        self._in_order = False
        self._last_drawn: dict[Request, int] = {}

    def warm_up(self) -> None:
        """Capture all sizes of steps, largest first, so that they share their memory."""
        if self._eager:
            return
        speaking = {_speaking(rows) for rows in range(1, self._max_rows + 1)}
        mixed = {self._mixed(rows) for rows in self._mixed_rows}
        for size in sorted(speaking | mixed, key=lambda size: size.rows, reverse=True):
            self._graph(size)
        torch.cuda.synchronize()

    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `engine.runner.Runner.run`."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Pending | HostDrawn:
        """Start a step; it may feed tokens (given as negative ids) that are still being drawn."""
        copy_in_order(self._cache, plan.copies)
        drawing = [s.owner for s in plan.shares if s.sample and isinstance(s.owner, Request)]
        drawing += plan.replies
        special = [(number, r) for number, r in enumerate(drawing) if not r.plain]
        if held := [r for _, r in special if r.constraint is not None]:
            self._drawing.hold(held)
        try:
            logits = self._logits(plan, drawing)
        except BaseException:
            self._standing, self._last_drawn = [], {}
            raise
        by_host = [number for number, r in special if self._drawing.by_host(r)]
        self._last_drawn = {request: number for number, request in enumerate(drawing)}
        if not by_host:
            return self._fetch(len(drawing))
        for number in by_host:  # these tokens must be told to the next step, captured or not
            del self._last_drawn[drawing[number]]
        self._standing = []
        shares = [share for share in plan.sequences if share.sample]
        specs = [sample_spec(shares[number]) for number in by_host]
        rows = self._to_host(logits, by_host)  # before the event that says all has arrived
        return HostDrawn(self._fetch(len(drawing)), by_host, rows, specs)

    def needs_host(self, request: Request) -> bool:
        """Whether the host must know all tokens before the request's next one can be drawn: it
        draws that, or says what a grammar allows.
        """
        if request.constraint is not None or self._drawing.by_host(request):
            return True
        return request not in self._last_drawn  # the device does not know what the host is drawing

    def replay_time(self, repetitions: int) -> float:
        """Milliseconds of the step captured for the replies that were launched last.

        Replays it without telling anybody: what it draws is lost, and those replies must be
        cancelled. They must have as many tokens to go as there are repetitions.
        """
        graph = self._graph(_speaking(len(self._standing))).graph
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(repetitions):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / repetitions

    def _logits(self, plan: StepPlan, drawing: list[Request]) -> torch.Tensor:
        """Compute a step in the way that suits it; logits of those who draw come first."""
        if not plan.shares and drawing == self._standing:
            return self._speak(plan, drawing)  # nobody came or went: there is nothing to write out
        depths = [len(share.segments) for share in plan.shares]
        depths += [len(reply.chain) + 1 for reply in plan.replies]
        if self._eager or max(depths) > _DEPTH:
            return self._compute(plan, drawing)
        if plan.rows == plan.speakers:
            return self._speak(plan, drawing)
        if plan.rows > self._mixed_rows[-1] or wanted_states(plan.shares):
            return self._compute(plan, drawing)
        size = self._mixed(plan.rows)
        graph = self._graph(size)
        arrays = self._arrange(plan, drawing, size)
        if not self._tables.fits(arrays):
            return self._compute(plan, drawing)
        self._standing = []
        self._tables.upload(arrays.sections)
        graph.graph.replay()
        return graph.logits

    # -- uncaptured --------------------------------------------------------------------------------

    def _compute(self, plan: StepPlan, drawing: list[Request]) -> torch.Tensor:
        self._standing = []
        samples = len(drawing)
        size = StepSize(plan.rows, samples, 0, aligned=samples == plan.rows)
        arrays = self._arrange(plan, drawing, size)
        room = {name: len(array) for name, array in arrays.sections.items()}
        size = replace(size, merged=room["merged"])
        tables = StepTables(room, self._decoder.device)
        tables.upload(arrays.sections)
        partials = self._new_partials(arrays.partials)
        states = wanted_states(plan.shares)
        logits = self._forward(tables, size, partials, states=states)
        if drawing:
            self._sample(tables, logits, size)
        return logits

    # -- captured ----------------------------------------------------------------------------------

    def _speak(self, plan: StepPlan, drawing: list[Request]) -> torch.Tensor:
        """A step in which everybody speaks. If all of them did in the step before, the tables that
        stand on the device are right: each sample has moved its row on by one.
        """
        size = _speaking(len(drawing))
        graph = self._graph(size)
        if drawing != self._standing:
            arrays = self._arrange(plan, drawing, size)
            assert self._tables.fits(arrays), "replies longer than max_length"
            self._tables.upload(arrays.sections)
            self._standing = drawing
            drawn = [self._last_drawn.get(request) for request in drawing]
            self._in_order = drawn == list(range(len(drawing)))
        elif not self._in_order:
            self._tables.upload({"ids": -1 - np.arange(len(drawing), dtype=np.int32)})
            self._in_order = True
        graph.graph.replay()
        return graph.logits

    def _mixed(self, rows: int) -> StepSize:
        """The captured step in which `rows` rows run of which some read."""
        samples = _speaking(self._max_rows).samples
        padded = self._mixed_rows[bisect_left(self._mixed_rows, rows)]
        return StepSize(padded, samples, min(padded, 2 * samples), aligned=False)

    def _graph(self, size: StepSize) -> _Graph:
        graph = self._graphs.get(size)
        if graph is None:
            graph = self._graphs[size] = self._capture(size)
        return graph

    @torch.inference_mode()
    def _capture(self, size: StepSize) -> _Graph:
        """Record a step over the standing tables, which are emptied for it."""
        self._standing = []
        self._tables.upload(self._arrange(StepPlan(0, ()), [], size).sections)

        def step() -> torch.Tensor:
            logits = self._forward(self._tables, size, self._partials, self._side)
            self._sample(self._tables, logits, size)
            return logits

        if self._side is None:
            again = _Again(step)
            return _Graph(again, again.logits)
        # Kernels are compiled, and libraries make their workspaces, outside of the recording.
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = step()
        return _Graph(graph, logits)

    # -- both --------------------------------------------------------------------------------------

    def _arrange(self, plan: StepPlan, drawing: Sequence[Request], size: StepSize) -> StepArrays:
        return self._layout.arrange(
            plan.shares,
            plan.replies,
            fed_back=self._last_drawn,
            parameters=self._drawing.entries(drawing),
            size=size,
        )

    def _forward(
        self,
        tables: StepTables,
        size: StepSize,
        partials: tuple[torch.Tensor, torch.Tensor],
        side: torch.cuda.Stream | None = None,
        states: Sequence[tuple[int, int, StatesSink]] = (),
    ) -> torch.Tensor:
        cache, attentions = self._cache, self._attentions
        return self._decoder.forward(
            tables, size, self._drawn, cache, attentions, partials, side, states
        )

    def _sample(self, tables: StepTables, logits: torch.Tensor, size: StepSize) -> None:
        sampling.sample(
            logits,
            tables.section("table", size.samples),
            self._drawing.told,
            self._drawing.scratch,
            tables.section("sample_rows", size.samples),
            tables.section("positions"),
            self._drawn,
        )

    def _new_partials(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        config, device = self._decoder.config, self._decoder.device
        shape = (count, config.heads, config.head_dim)
        return (
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape[:2], dtype=torch.float32, device=device),
        )

    def _fetch(self, count: int) -> Pending:
        """Send the drawn tokens to the host, behind the step."""
        self._turn = (self._turn + 1) % _RESULTS
        tokens = self._results[self._turn][:count]
        tokens.copy_(self._drawn[:count], non_blocking=True)
        if not self._drawn.is_cuda:
            return Pending(tokens, None)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return Pending(tokens, done)

    @staticmethod
    def _to_host(logits: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor:
        """Some rows of logits in host memory, float32, in order of the stream."""
        index = torch.tensor(numbers)
        if not logits.is_cuda:
            return logits.index_select(0, index).float()
        # Through pinned memory, both ways: the host need not wait for the device.
        index = index.pin_memory().to(logits.device, non_blocking=True)
        rows = logits.index_select(0, index).float()
        return torch.empty(rows.shape, pin_memory=True).copy_(rows, non_blocking=True)


def _speaking(rows: int) -> StepSize:
    """The captured step that `rows` replies run in."""
    padded = next((size for size in _SMALL_GRAPHS if rows <= size), -(-rows // 16) * 16)
    return StepSize(padded, padded, padded, aligned=True)


def _room(max_rows: int, mixed_rows: int, max_length: int, block_size: int) -> dict[str, int]:
    """Entries of a captured step's tables, enough for any batch of replies."""
    replies = _speaking(max_rows).rows
    rows = max(replies, mixed_rows)
    parts = replies * (-(-max_length // CHUNK) + _DEPTH)
    return {
        "ids": rows,
        "positions": rows,
        "sample_rows": replies,
        "table": replies,
        "piece_start": rows,
        "piece_blocks": rows,
        "part_first": rows,
        "part_count": rows,
        "merged": min(rows, 2 * replies),
        "counts": 3,
        "rows": rows * _DEPTH,
        "parts": parts,
        "small": parts,
        "large": parts,
        "reading": rows,
        "links": rows * _DEPTH,
        "blocks": replies * (-(-max_length // block_size) + _DEPTH) + 1,
    }
