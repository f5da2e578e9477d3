"""Runs plans on an accelerator; steps of replies alone are captured once and replayed.

A step is launched without waiting for the one before: tokens it has to feed but nobody on the host
has seen yet are read from where the device drew them. Everything happens in order of one stream,
so a block given to somebody else is written only after the last step that reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.decoding.sampling import Sampled
from engine.device.drawing import Drawing
from engine.device.launched import HostDrawn, Pending
from engine.device.layout import arrange
from engine.device.tables import StepArrays, StepTables
from engine.kv.cache import KVCache
from engine.kv.copies import copy_in_order
from engine.models.device_decoder import DeviceDecoder
from engine.plan import SequenceStep, StatesSink, StepPlan, wanted_states
from engine.request import Request
from engine.runner import sample_spec
from kernels.gpu import sampling
from kernels.gpu.tree_attention import TreeAttention
from kernels.tree_work import CHUNK

#: Numbers of rows that are captured, besides multiples of 16.
_SMALL_GRAPHS = (1, 2, 4, 8)
#: Pieces a reply's chain has at most in a captured step; deeper ones run uncaptured.
_DEPTH = 8
#: Buffers of drawn tokens on their way to the host; one more than steps in flight.
_RESULTS = 3


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured step.

    Attributes:
        graph: to be replayed.
        logits: [rows, vocab], overwritten by each replay.
    """

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor


class DeviceRunner:
    """Runs plans on a `DeviceDecoder`.

    Args:
        decoder: the model.
        cache: its KV, with one block more than the pool knows, which takes what padding writes.
        max_rows: most replies in a step.
        max_length: most tokens of a sequence.
        eager: capture nothing.
    """

    def __init__(
        self,
        decoder: DeviceDecoder,
        cache: KVCache,
        max_rows: int,
        max_length: int,
        *,
        eager: bool = False,
    ) -> None:
        config, device = decoder.config, decoder.device
        self._decoder = decoder
        self._cache = cache
        self._trash = cache.keys.shape[2] // cache.block_size - 1
        self._eager = eager or device.type == "cpu"
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
        self._drawing = Drawing(config.vocab_size, 2 * max_rows, device)
        self._drawn = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._results = [
            torch.zeros(max_rows, dtype=torch.int32, pin_memory=device.type == "cuda")
            for _ in range(_RESULTS)
        ]
        self._turn = 0
        self._max_rows = max_rows
        self._graphs: dict[int, _Graph] = {}
        # Large items run beside small ones, which wait for memory most of the time.
        self._side = None if self._eager else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._tables = StepTables(_room(max_rows, max_length, cache.block_size), device, 2)
        self._partials = self._new_partials(self._tables.room["parts"] if not self._eager else 0)
        # What the captured steps' tables hold: whose rows, and whether their ids point to the same
        # order in which the tokens were drawn.
        self._standing: list[Request] = []
        self._in_order = False
        self._last_drawn: dict[Request, int] = {}

    def warm_up(self) -> None:
        """Capture the steps of all row counts, largest first, so that they share their memory."""
        if self._eager:
            return
        for rows in sorted(_captured_rows(self._max_rows), reverse=True):
            self._graph(rows)
        torch.cuda.synchronize()

    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `engine.runner.Runner.run`."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Pending | HostDrawn:
        """Start a step; it may feed tokens (given as negative ids) that are still being drawn."""
        copy_in_order(self._cache, plan.copies)
        drawing = [s.owner for s in plan.sequences if s.sample and isinstance(s.owner, Request)]
        captured = (
            not self._eager
            and len(drawing) == len(plan.sequences) == plan.rows <= self._max_rows
            and all(request.speaking and len(request.chain) < _DEPTH for request in drawing)
        )
        try:
            compute = self._replay if captured else self._compute
            logits = compute(plan.sequences, drawing)
        except BaseException:
            self._standing, self._last_drawn = [], {}
            raise
        by_host = [n for n, request in enumerate(drawing) if self._drawing.by_host(request)]
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
        """Whether the request's next token is drawn on the host, from all tokens before."""
        return self._drawing.by_host(request)

    def replay_time(self, repetitions: int) -> float:
        """Milliseconds of the step captured for the replies that were launched last.

        Replays it without telling anybody: what it draws is lost, and those replies must be
        cancelled. They must have as many tokens to go as there are repetitions.
        """
        graph = self._graph(_padded(len(self._standing))).graph
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(repetitions):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / repetitions

    # -- uncaptured --------------------------------------------------------------------------------

    def _compute(self, sequences: Sequence[SequenceStep], drawing: list[Request]) -> torch.Tensor:
        self._standing = []
        rows, samples = sum(len(share.tokens) for share in sequences), len(drawing)
        arrays = self._arrange(sequences, drawing, rows, samples)
        room = {name: len(array) for name, array in arrays.sections.items()}
        tables = StepTables(room, self._decoder.device)
        tables.upload(arrays.sections)
        partials = self._new_partials(arrays.partials)
        states = wanted_states(sequences)
        logits = self._forward(tables, rows, samples, partials, states=states)
        if samples:
            self._sample(tables, logits, samples)
        return logits

    # -- captured ----------------------------------------------------------------------------------

    def _replay(self, sequences: Sequence[SequenceStep], drawing: list[Request]) -> torch.Tensor:
        rows = _padded(len(drawing))
        graph = self._graph(rows)
        if drawing != self._standing:
            arrays = self._arrange(sequences, drawing, rows, rows)
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

    def _graph(self, rows: int) -> _Graph:
        graph = self._graphs.get(rows)
        if graph is None:
            graph = self._graphs[rows] = self._capture(rows)
        return graph

    @torch.inference_mode()
    def _capture(self, rows: int) -> _Graph:
        """Record a step of `rows` rows over the standing tables, which are emptied for it."""
        self._standing = []
        empty = self._arrange((), [], rows, rows)
        self._tables.upload(empty.sections)

        def step() -> torch.Tensor:
            logits = self._forward(self._tables, rows, rows, self._partials, self._side)
            self._sample(self._tables, logits, rows)
            return logits

        # Kernels are compiled, and libraries make their workspaces, outside of the recording.
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next((other.graph.pool() for other in self._graphs.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            logits = step()
        return _Graph(graph, logits)

    # -- both --------------------------------------------------------------------------------------

    def _arrange(
        self, sequences: Sequence[SequenceStep], drawing: list[Request], rows: int, samples: int
    ) -> StepArrays:
        return arrange(
            sequences,
            fed_back=self._last_drawn,
            parameters=self._drawing.entries(drawing),
            rows=rows,
            samples=samples,
            tiles=next(iter(self._attentions.values())).rows,
            trash=self._trash,
        )

    def _forward(
        self,
        tables: StepTables,
        rows: int,
        samples: int,
        partials: tuple[torch.Tensor, torch.Tensor],
        side: torch.cuda.Stream | None = None,
        states: Sequence[tuple[int, int, StatesSink]] = (),
    ) -> torch.Tensor:
        cache, attentions = self._cache, self._attentions
        return self._decoder.forward(
            tables, rows, samples, self._drawn, cache, attentions, partials, side, states
        )

    def _sample(self, tables: StepTables, logits: torch.Tensor, samples: int) -> None:
        sampling.sample(
            logits,
            tables.section("table", samples),
            self._drawing.seen,
            tables.section("sample_rows", samples),
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


def _padded(rows: int) -> int:
    """Rows of the captured step that `rows` replies run in."""
    for size in _SMALL_GRAPHS:
        if rows <= size:
            return size
    return -(-rows // 16) * 16


def _captured_rows(most: int) -> set[int]:
    return {_padded(rows) for rows in range(1, most + 1)}


def _room(max_rows: int, max_length: int, block_size: int) -> dict[str, int]:
    """Entries of a captured step's tables, enough for any batch of replies."""
    rows = _padded(max_rows)
    parts = rows * (-(-max_length // CHUNK) + _DEPTH)
    return {
        "ids": rows,
        "positions": rows,
        "sample_rows": rows,
        "table": rows,
        "piece_start": rows,
        "piece_blocks": rows,
        "part_first": rows,
        "part_count": rows,
        "counts": 3,
        "rows": rows * _DEPTH,
        "parts": parts,
        "small": parts,
        "large": parts,
        "reading": 0,
        "blocks": rows * (-(-max_length // block_size) + _DEPTH) + 1,
    }
