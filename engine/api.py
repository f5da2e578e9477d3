"""The engine's public face for servers; `engine.llm` is the one for scripts."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakValueDictionary

from engine.build import build_engine, kv_summary
from engine.config import EngineConfig
from engine.errors import EngineError, EngineStopped, InvalidRequest, OutOfMemory
from engine.face import AnyEngine
from engine.forecast import Expectation
from engine.grammar import KINDS, Grammar
from engine.listeners import Listeners
from engine.loop import READ
from engine.measures import Series
from engine.outputs import Embedding, RequestOutput
from engine.params import SamplingParams
from engine.pooling import Pooling, PoolingKind
from engine.prefixes import Prefix
from engine.profile import Profile
from engine.request import Request
from engine.scripted import ScriptedModel
from engine.ticket import Ticket
from engine.weights.load import LoadedModel

_log = logging.getLogger("troupe.engine")
#: Texts of one `embed` that are in the engine's queue together: the queue is for others, too.
_TEXTS_AT_ONCE = 16


class AsyncEngine(AnyEngine):
    """An engine that steps in a thread of its own and reports to an event loop.

    All tokens of a step reach the loop in one call, however many requests they belong to. See
    `AnyEngine` for the attributes.
    """

    def __init__(
        self, model: LoadedModel | ScriptedModel, config: EngineConfig | None = None
    ) -> None:
        config = config or EngineConfig()
        self._engine = build_engine(model, config)
        self.tokenizer = model.tokenizer
        self.chat = model.chat
        self.scripted = isinstance(model, ScriptedModel)
        self.scripted_length = model.longest if isinstance(model, ScriptedModel) else 0
        self.model_name = "script" if isinstance(model, ScriptedModel) else model.name
        self.max_model_len = self._engine.max_model_len
        self.summary = kv_summary(self._engine, model, config)
        self.notices: tuple[str, ...] = ()
        self.held = not self.scripted
        self.grammar_kinds = KINDS
        self.halted = False
        self._listeners = Listeners()
        self._requests: WeakValueDictionary[int, Request] = WeakValueDictionary()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = False

    def attach(self, profile: Profile) -> None:
        """Let a profile see every step. Before `start`."""
        self._engine.attach(profile)

    async def start(self) -> None:
        """Start stepping. Outputs are delivered in the running event loop."""
        self._listeners.attach()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End open requests as cancelled and the thread after its current step. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        self._wake.set()
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)  # let what the thread handed over be delivered

    @property
    def alive(self) -> bool:
        """Whether the stepping thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def create_prefix(self, token_ids: Sequence[int], parent: Prefix | None = None) -> Prefix:
        """A handle for a prompt beginning that many requests share; see `Engine.create_prefix`."""
        return self._engine.create_prefix(token_ids, parent)

    def release_prefix(self, prefix: Prefix) -> None:
        """Give a handle back; with the last one the node is no longer kept."""
        self._engine.release_prefix(prefix)
        self._wake.set()

    async def warm(self, prefix: Prefix) -> None:
        """Compute a prefix now and keep it until it is released.

        Raises:
            OutOfMemory: it does not fit beside what is pinned, or was released meanwhile.
            EngineStopped: the engine does not run.
        """
        if not self.alive:
            raise EngineStopped("start() the engine before warming a prefix")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: OutOfMemory | None) -> None:
            if ready.done():
                return
            if error is None:
                ready.set_result(None)
            else:
                ready.set_exception(error)

        self._engine.warm(prefix, lambda error: self._listeners.call(partial(settle, error)))
        self._wake.set()
        await ready

    async def prepare(self, grammar: Grammar) -> None:
        """Compile a grammar beside the event loop, so that `submit` need not wait for it.

        `stream` does this by itself.

        Raises:
            InvalidRequest: it cannot be compiled within the bounds, or no text matches it.
        """
        with self._engine.grammars.compiling(grammar) as result:
            # Others may wait for the same: whoever leaves must not take it from them.
            await asyncio.shield(asyncio.wrap_future(result))
        self._engine.grammars.check(grammar)

    def conforms(self, grammar: Grammar, text: str) -> bool:
        """Whether a text that nothing was held to is one of a grammar's.

        Raises:
            InvalidRequest: it cannot be compiled within the bounds, or no text matches it.
        """
        constraint = self._engine.grammars.constrain(SamplingParams(grammar=grammar))
        assert constraint is not None  # there is a grammar
        return constraint.is_whole(text)

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        on_output: Callable[[RequestOutput], None],
        prefix: Prefix | None = None,
        priority: int = 1,
        salt: str = "",
        shares: tuple[str, ...] = (),
        sibling: Ticket | None = None,
    ) -> Ticket:
        """Queue a request.

        A grammar that was not prepared is compiled first, which may take some hundred milliseconds.

        Args:
            prompt_ids: own tokens, following `prefix`; at least one.
            params: sampling and stopping.
            on_output: called in the event loop, at most once a step; its last output has `finish`
                set.
            prefix: node the prompt continues.
            priority: class; 0 is most urgent and may take reserved slots.
            salt: requests share cached history only if their salts are equal.
            shares: on whose account it runs (player, then scene), for the `fair` policy.
            sibling: another sample of the same prompt, whose KV this one shares.

        Raises:
            InvalidRequest, ContextExceeded, QueueFull, Halted, EngineStopped: at once; nothing was
                taken.
        """
        if self._stopping:
            raise EngineStopped("the engine is shutting down")
        request = self._engine.submit(
            prompt_ids,
            params,
            prefix=prefix,
            priority=priority,
            salt=salt,
            shares=shares,
            sibling=None if sibling is None else self._requests.get(sibling.id),
        )
        self._requests[request.id] = request
        self._listeners.add(request.id, on_output)
        self._wake.set()
        return Ticket(request.id, request.prompt_ids, prefix)

    def cancel(self, ticket: Ticket) -> None:
        """End a request, queued or running; its last output says `cancelled`. Idempotent."""
        request = self._requests.get(ticket.id)
        if request is not None and ticket.id in self._listeners:  # else it has ended: no work
            self._engine.cancel(request)
            self._wake.set()

    def halt(self) -> None:
        """The kill switch: end every request, queued or running, within one step, and take none
        until `release`. Idempotent.
        """
        self.halted = True
        self._engine.halt()
        self._wake.set()

    def release(self) -> None:
        """Take requests again after `halt`. Idempotent."""
        self.halted = False
        self._engine.release()
        self._wake.set()

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        pooling: PoolingKind = "mean",
        normalize: bool = True,
        priority: int = 2,
        shares: tuple[str, ...] = (),
    ) -> list[Embedding]:
        """The vector of each text, read beside the replies in what their steps leave.

        Args:
            texts: text or token ids.
            pooling: "mean" of all tokens' final hidden states, or the "last" token's.
            normalize: scale vectors to length 1.
            priority: class; 2 is after everybody who waits for a reply.
            shares: on whose account, for the `fair` policy.

        Raises:
            InvalidRequest, ContextExceeded: one cannot be read; nothing was.
            QueueFull, EngineStopped: at once, or while some still had to be queued; the others are
                given up.
            EngineError: the step that read one of them failed.
        """
        if self.scripted:
            raise InvalidRequest("a script has no hidden states to make vectors of")
        jobs: list[tuple[tuple[int, ...], Pooling]] = []
        for number, text in enumerate(texts):
            how = Pooling(pooling, normalize=normalize)
            ids = self.tokenizer.prompt(text) if isinstance(text, str) else text
            try:
                checked = self._engine.entrance.check(ids, READ, priority=priority, pooling=how)
            except EngineError as error:
                error.add_note(f"in text {number}")
                raise
            jobs.append((checked, how))
        some_may_go = asyncio.Semaphore(_TEXTS_AT_ONCE)

        async def read(ids: tuple[int, ...], how: Pooling) -> Embedding:
            async with some_may_go:
                return await self._read(ids, how, priority, shares)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(read(*job)) for job in jobs]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _read(
        self, ids: tuple[int, ...], pooling: Pooling, priority: int, shares: tuple[str, ...]
    ) -> Embedding:
        if self._stopping:
            raise EngineStopped("the engine is shutting down")
        done: asyncio.Future[RequestOutput] = asyncio.get_running_loop().create_future()
        request = self._engine.embed(ids, pooling, priority=priority, shares=shares)
        self._listeners.add(
            request.id, lambda output: None if done.done() else done.set_result(output)
        )
        self._wake.set()
        try:
            return Embedding.of(await done)
        finally:
            self._engine.cancel(request)
            self._wake.set()

    def expect(self, priority: int, prefix: Prefix | None = None) -> Expectation:
        """See `AnyEngine.expect`."""
        return self._engine.forecast.of(priority, prefix=prefix)

    def measures(self) -> list[Series]:
        """Histograms of waits, gaps and sizes; see `engine.measures`."""
        return self._engine.measures()

    def gauges(self) -> dict[str, float]:
        """A recent snapshot of the engine's counters; exact when it is idle. See `engine.stats`."""
        return self._engine.gauges

    def _run(self) -> None:
        engine = self._engine
        try:
            while not self._stopping:
                self._wake.wait()
                self._wake.clear()
                while engine.has_work and not self._stopping:
                    outputs = engine.step()
                    if outputs:
                        self._listeners.send(outputs)
        except Exception:
            _log.exception("the engine thread ended")
        finally:
            self._stopping = True
            self._listeners.abandon()
