"""The engine itself: synchronous, steppable by hand. `engine.step()` in a loop is the debugger."""

import itertools
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.decoding.compiler import GrammarCompiler
from engine.decoding.detokenize import Pieces
from engine.decoding.sampling import Sampled
from engine.decoding.text import TextStream
from engine.entrance import Entrance
from engine.errors import (
    ContextExceeded,
    EngineError,
    Halted,
    NoRoom,
    OutOfMemory,
    QueueFull,
)
from engine.footprint import ran_out
from engine.forecast import Forecast
from engine.measures import Series
from engine.memory import no_room
from engine.outputs import FinishReason, RequestOutput
from engine.params import SamplingParams
from engine.plan import StepPlan
from engine.pooling import Pooling
from engine.prefixes import Prefix, PrefixTree
from engine.profile import Profile, Reports, Span, no_span
from engine.request import PENDING, Request, State, Warming
from engine.runner import Runner
from engine.scheduler import Reader, Scheduler
from engine.stats import Stats
from engine.tokenizer import Tokenizer

_log = logging.getLogger("troupe.engine")
#: Of a text that is read for its embedding; nothing is drawn.
READ = SamplingParams(max_tokens=1)
_WARN_EVERY_S = 60.0
#: Gauges may be this old while steps run; they are exact when the engine is idle.
_SNAPSHOT_EVERY_S = 0.05
#: Where at most so many wait, what newcomers may expect is told anew after every step.
_FEW = 8


class Engine:
    """Requests in, tokens out, one step at a time.

    All public methods but `step` may be called from any thread: they check what they are given and
    leave the work in an inbox. `step` belongs to one thread, which owns all state behind it.

    Attributes:
        max_model_len: most tokens of prefix, prompt and output that are in the cache together.
        grammars: compiles what requests are to be held to.
        entrance: checks requests that are not to be queued yet; `submit` does so by itself.
        gauges: the latest snapshot, see `Stats.snapshot`.
        forecast: predicts first tokens.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        pool: BlockPool,
        max_model_len: int,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._pieces = Pieces(tokenizer)
        self._config = config
        self._clock = clock
        self._pool = pool
        self._tree = PrefixTree(pool)
        self._scheduler = Scheduler(config, pool, self._tree)
        self._stats = Stats()
        self.forecast = Forecast(self._scheduler, clock())
        self._inbox: deque[Callable[[], None]] = deque()
        self._ids = itertools.count()
        self._halted = False
        self._draw_seed = (
            secrets.randbits if config.seed is None else random.Random(config.seed).getrandbits
        )
        self.grammars = GrammarCompiler(tokenizer)
        self._outputs: list[RequestOutput] = []
        self._cancelled: list[Request] = []
        self._snapshot_due = 0.0
        self._warn_due = float("-inf")
        self._profile: Profile | None = None
        self._span: Span = no_span
        self.max_model_len = min(max_model_len, pool.size * pool.block_size)
        self.entrance = Entrance(tokenizer, pool, config, self.max_model_len, self.grammars)
        self.gauges = self._stats.snapshot(self._scheduler, pool, self._tree)

    # -- callers' side, any thread -----------------------------------------------------------------

    def create_prefix(self, token_ids: Sequence[int], parent: Prefix | None = None) -> Prefix:
        """The node that says `token_ids` after `parent`; equal text gives the same node. Computes
        nothing.

        Raises:
            InvalidRequest: no tokens, or ids outside the vocabulary.
            ContextExceeded: no room for even one token of prompt and output after it.
        """
        ids = self.entrance.token_ids(token_ids, "a prefix")
        total = len(ids) + (parent.total if parent else 0)
        if total + 2 > self.max_model_len:
            raise ContextExceeded(self.max_model_len - 2, total, "the prefix")
        node = self._tree.node(parent, ids)
        node.handles += 1
        return node

    def release_prefix(self, prefix: Prefix) -> None:
        """Give one `create_prefix` back. With the last one the node is freed, as soon as no request
        and no child uses it.
        """
        prefix.handles -= 1
        if prefix.handles == 0:
            self._inbox.append(partial(self._scheduler.released, prefix))

    def warm(self, prefix: Prefix, done: Callable[[OutOfMemory | None], None]) -> None:
        """Compute a node and keep it while it is referenced.

        `done` is called in the stepping thread, with None or with the reason it cannot be.
        """
        self._inbox.append(partial(self._scheduler.warm, Warming(prefix, self._clock(), done)))

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        prefix: Prefix | None = None,
        priority: int = 1,
        salt: str = "",
        shares: tuple[str, ...] = (),
        sibling: Request | None = None,
        pooling: Pooling | None = None,
    ) -> Request:
        """Queue a request; see `AsyncEngine.submit`. `sibling` is a sample of the same prompt;
        with `pooling` the prompt is only read, see `embed`.

        Raises:
            InvalidRequest: no tokens, ids outside the vocabulary, a negative priority.
            ContextExceeded: it can never fit; nothing was taken for it.
            QueueFull: `max_waiting` requests wait already.
            NoRoom: it does not fit beside the prefixes that are kept.
            Halted: see `halt`.
        """
        try:
            if self._halted:
                raise Halted
            ids = self.entrance.check(
                prompt_ids, params, prefix=prefix, priority=priority, pooling=pooling
            )
            if len(self._scheduler.waiting) + len(self._inbox) >= self._config.max_waiting:
                raise QueueFull(self._config.max_waiting)
            self._check_room(ids, params, prefix, pooling)
        except EngineError as error:
            self._stats.refused[error.code] += 1
            raise
        constraint = self.grammars.constrain(params)
        request = Request(
            next(self._ids),
            ids,
            params,
            prefix=prefix,
            priority=priority,
            salt=salt,
            shares=shares,
            seed=self._draw_seed(62) if params.seed is None else params.seed,
            text=TextStream(self._pieces, params, self._tokenizer.eos_ids, constraint),
            arrived=self._clock(),
            changes=self.entrance.changes(ids, params, prefix),
            constraint=constraint,
            sibling=sibling,
            pooling=pooling,
        )
        self.forecast.submitted(request)
        self._inbox.append(partial(self._scheduler.add, request))
        return request

    def embed(
        self,
        token_ids: Sequence[int],
        pooling: Pooling,
        *,
        priority: int = 2,
        shares: tuple[str, ...] = (),
    ) -> Request:
        """Queue a text to be read for its embedding; its only output has `embedding` set.

        It is read beside the replies, in what their steps leave; errors as of `submit`.
        """
        return self.submit(token_ids, READ, priority=priority, shares=shares, pooling=pooling)

    def cancel(self, request: Request) -> None:
        """End a request wherever it is, before the next step. Idempotent."""
        self._inbox.append(partial(self._cancelled.append, request))

    def halt(self) -> None:
        """End all requests before the next step, and take none until `release`. Idempotent.

        Prefixes are computed as ever: nobody speaks by them.
        """
        self._halted = True
        self._inbox.append(self._end_all)

    def release(self) -> None:
        """Take requests again. Idempotent."""
        self._halted = False

    def measures(self) -> list[Series]:
        """Histograms of waits, gaps and sizes so far."""
        return self._stats.measures.read()

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return bool(self._inbox) or not self._scheduler.idle

    # -- the engine's thread -----------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Take in what has arrived, compute one step, and return what it released."""
        with self._span("step"):
            self._outputs = []
            self._step()
            self._look_around()
        return self._outputs

    def _step(self) -> None:
        with self._span("take in"):
            self._take_in()
        with self._span("plan"):
            plan = self._scheduler.plan(self._clock())
        if plan is not None:
            self._compute(plan)
        elif not self._scheduler.idle:
            self._scheduler.unstick(self._clock(), self._refuse)

    def attach(self, profile: Profile) -> None:
        """Let a profile see every step from now on. Before the first step."""
        self._profile = profile
        self._span = profile.span
        if isinstance(self._runner, Reports):
            self._runner.span, self._runner.book = profile.span, profile.book

    def check(self) -> None:
        """Raise AssertionError if the books do not add up. For tests."""
        self._pool.check()
        self._scheduler.slots.check()

    def _take_in(self) -> None:
        """Let what other threads asked for happen."""
        while self._inbox:
            self._inbox.popleft()()
        for request in self._cancelled:
            self._end(request, "cancelled")
        self._cancelled.clear()
        if self._halted:  # what another thread let in at the same time
            self._end_all()

    def _end_all(self) -> None:
        for request in self._scheduler.requests:
            self._end(request, "cancelled")

    def _look_around(self) -> None:
        """Renew the gauges, if that is due."""
        now = self._clock()
        if now >= self._snapshot_due or not self.has_work:
            self._snapshot_due = now + _SNAPSHOT_EVERY_S
            self.gauges = self._stats.snapshot(self._scheduler, self._pool, self._tree)
        elif len(self._scheduler.waiting) > _FEW:
            return  # looking at so many takes time, and one step changes little of their wait
        self.forecast.take_stock(now, self._scheduler.newest)

    def _compute(self, plan: StepPlan) -> None:
        if self._profile is not None:
            self._profile.planned(plan)
        speakers = plan.speakers
        started = self._clock()
        try:
            with self._span("forward"):
                drawn = self._runner.run(plan)
        except Exception as error:
            self._fail(plan, error)
            return
        with self._span("deliver"):
            elapsed_ms = (self._clock() - started) * 1000
            self._scheduler.computed(plan)
            self._deliver(plan, speakers, drawn, elapsed_ms)

    def _deliver(
        self, plan: StepPlan, speakers: int, drawn: Sequence[Sampled], elapsed_ms: float
    ) -> None:
        """Take note of a step that has ended, and give out what it yields to those that have not.

        It was begun with so many speakers, and is booked already.
        """
        self._scheduler.cost.learn(speakers, plan.rows - speakers, elapsed_ms)
        possible = self._could_advance()
        used = spoken = 0
        now = self._clock()
        tokens = iter(drawn)
        for share in plan.shares:
            owner = share.owner
            sampled = next(tokens) if share.sample else None
            if isinstance(owner, Request):
                if owner.state is State.FINISHED:
                    continue
                if sampled is None:
                    self._take_states(owner)
                else:
                    self._take(owner, sampled, now)
                    spoken += 1
            used += 1
        for request, sampled in zip(plan.replies, tokens, strict=True):
            if request.state is not State.FINISHED:
                self._take(request, sampled, now)
                spoken += 1
                used += 1
        self._stats.stepped(used, spoken, elapsed_ms, possible)

    def _could_advance(self) -> int:
        """Requests that want to advance, as far as there are slots for them."""
        books = self._scheduler
        wanting = len(books.slots.running) + len(books.waiting) + len(books.parked)
        return min(wanting, books.pace.max_num_seqs)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        """One bad step must not end the engine, only the requests in it."""
        _log.exception("step %d failed", plan.step)
        refusal: NoRoom | None = None
        if ran_out(error):
            refusal = no_room(self._pool, self._pool.blocks_for(plan.rows), 0)
            self._warn(refusal)
        for request in self._scheduler.failed(plan):
            self._end(request, "failed", f"the step failed: {error}", refusal=refusal)

    def _check_room(
        self,
        ids: tuple[int, ...],
        params: SamplingParams,
        prefix: Prefix | None,
        pooling: Pooling | None,
    ) -> None:
        """Raise `NoRoom` if a request does not fit beside the prefixes that are kept."""
        pinned = int(self.gauges["blocks_pinned"])
        try:
            self.entrance.check_room(ids, params, prefix, pooling, pinned)
        except NoRoom as refusal:
            self._warn(refusal)
            raise

    def _warn(self, refusal: NoRoom) -> None:
        """One line for the owner of the machine; more of the same say nothing new."""
        now = self._clock()
        if now >= self._warn_due:
            self._warn_due = now + _WARN_EVERY_S
            _log.warning(
                "memory is short: a request needs %s bytes of KV cache, %s are available; raise "
                "kv_cache_bytes, lower warm_npcs, or open fewer scenes",
                f"{refusal.required:,}",
                f"{refusal.available:,}",
            )

    def _take(self, request: Request, sampled: Sampled, now: float) -> None:
        """Put a sampled token where one was pending, and release the text it completes."""
        token = sampled.token
        request.tokens[-1] = token
        if request.changes is not None:
            request.changes.push(token)
        if request.constraint is not None:
            request.constraint.push(token)
            if request.constraint.error is not None:
                self._end(request, "failed", request.constraint.error)
                return
        if request.first_token_at is None:
            self.forecast.began(request, now - request.arrived)
        self._stats.has_token(request, now)
        released = request.text.push(token)
        logprobs = None if sampled.logprobs is None else (sampled.logprobs,)
        output = RequestOutput(request.id, released.text, (token,), logprobs=logprobs)
        if released.finish is not None:
            self._end(request, released.finish, last=output)
            return
        self._outputs.append(output)
        if request.constraint is not None:
            request.constraint.begin_mask()

    def _take_states(self, request: Request) -> None:
        """Give out the embedding of a text, if that has been read to its end."""
        if request.pooling is None or not request.complete:
            return
        try:
            vector = request.pooling.vector()
        except Exception as error:  # also what only shows when a device is waited for
            self._end(request, "failed", str(error))
            return
        self._end(request, "stop", last=RequestOutput(request.id, "", (), embedding=vector))

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        error: str | None = None,
        *,
        last: RequestOutput | None = None,
        refusal: EngineError | None = None,
    ) -> None:
        if request.state is State.FINISHED:
            return
        if request.tokens[-1] == PENDING:
            request.tokens.pop()
        usage = request.usage(self._clock())
        self._scheduler.finish(request)
        if self._profile is not None:
            self._profile.ended(request.priority, usage)
        self._stats.finished(reason, usage, request.priority)
        self.forecast.ended(request, usage)
        last = last or RequestOutput(request.id, "", ())
        complete = None
        if request.constraint is not None:
            # A reply that ends by itself is whole; one cut at its length may happen to be.
            complete = reason == "stop" or (reason == "length" and request.constraint.accepts)
        self._outputs.append(
            replace(
                last,
                finish=reason,
                usage=usage,
                error=error,
                refusal=refusal,
                complete=complete,
            )
        )

    def _refuse(self, reader: Reader, error: OutOfMemory | NoRoom) -> None:
        if isinstance(error, NoRoom):
            assert isinstance(reader, Request)
            self._warn(error)
            self._end(reader, "failed", str(error), refusal=error)
        elif isinstance(reader, Warming):
            self._scheduler.unpin(reader.node, error)
