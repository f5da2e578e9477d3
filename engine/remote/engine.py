"""The face of a cluster elsewhere: the same as that of an engine of our own."""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from engine.chat import Message
from engine.config import EngineConfig
from engine.decoding.compiler import GrammarCompiler
from engine.errors import (
    ContextExceeded,
    EngineError,
    EngineStopped,
    Halted,
    InvalidRequest,
    QueueFull,
)
from engine.face import AnyEngine
from engine.forecast import Expectation
from engine.grammar import Grammar
from engine.listeners import Listeners
from engine.measures import Series
from engine.outputs import Embedding, RequestOutput
from engine.params import SamplingParams
from engine.pooling import PoolingKind
from engine.prefixes import Prefix
from engine.remote.abilities import length, notices, summary
from engine.remote.client import Client, base_of
from engine.remote.config import RemoteConfig
from engine.remote.desk import Desk
from engine.remote.dialect import Dialect, PromptForm
from engine.remote.embeddings import Vectors, embed
from engine.remote.entrance import RemoteEntrance
from engine.remote.letters import letters
from engine.remote.packed import PackedTokenizer, marked_chat
from engine.remote.probe import Advance, Probe
from engine.remote.reply import Reply
from engine.remote.request import RemoteRequest
from engine.remote.servers import Servers
from engine.remote.stats import RemoteStats
from engine.ticket import Ticket
from engine.weights.load import Vocabulary

_log = logging.getLogger("troupe.engine.remote")
_WARMING = SamplingParams(max_tokens=1, temperature=0.0)


class RemoteEngine(AnyEngine):
    """Servers of one model behind the face of an engine; see `AnyEngine` for the attributes.

    A thread of its own holds all connections and reads what comes, so that the event loop is left
    to the game. It is made by `connect`, which has asked the servers what they understand.
    """

    def __init__(
        self,
        config: RemoteConfig,
        order: EngineConfig,
        dialect: Dialect,
        vocabulary: Vocabulary | None,
        grammars: GrammarCompiler,
    ) -> None:
        words = vocabulary or Vocabulary(dialect.model, PackedTokenizer(), marked_chat())
        self.tokenizer = words.tokenizer
        self.chat = words.chat
        self.model_name = dialect.model
        self.max_model_len = length(dialect, order)
        self.summary = summary(config, dialect)
        self.notices = notices(dialect, order)
        self.scripted = False
        self.scripted_length = 0
        self.held = False  # what servers promise is checked
        self.grammar_kinds = frozenset(dialect.ways)
        self.halted = False
        self.dialect = dialect
        self._config = config
        self._max_open = config.in_flight + order.max_waiting
        self._max_waiting = order.max_waiting
        self._grammars = grammars
        self._entrance = RemoteEntrance(self.tokenizer, dialect, self.max_model_len, grammars)
        self._ids = itertools.count()
        self._nodes = itertools.count()
        self._requests: dict[int, RemoteRequest] = {}
        self._listeners = Listeners()
        self._stats = RemoteStats()
        self._servers = Servers([base_of(url) for url in config.urls], config)
        self._client = Client(config)
        self._desk = Desk(
            self._client, dialect, self._servers, config, order, self._stats, self._emit
        )
        self._outputs: list[RequestOutput] = []
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._end = asyncio.Event()
        # Those who speak never wait for a connection behind those who want vectors.
        self._embedding = asyncio.Semaphore(config.in_flight)

    @classmethod
    def connect(
        cls,
        config: RemoteConfig,
        order: EngineConfig,
        vocabulary: Vocabulary | None = None,
        advance: Advance = lambda message: None,
    ) -> "RemoteEngine":
        """Ask the servers what they understand, and make an engine of what they all do. Blocks
        until they answer.

        Args:
            config: where they are.
            order: who goes first, and how many may wait.
            vocabulary: of the model, if ids are to be sent.
            advance: told what is waited for; may give up by raising.

        Raises:
            ModelError: they cannot be used as the settings want it; the message says what to do.
        """
        grammars = GrammarCompiler(letters())
        dialects = asyncio.run(_find_out(config, vocabulary, grammars, advance))
        return cls(config, order, Dialect.common(dialects), vocabulary, grammars)

    async def start(self) -> None:
        """See `AnyEngine.start`."""
        self._listeners.attach()
        self._thread = threading.Thread(target=self._run, name="remote-engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """See `AnyEngine.stop`."""
        self._stopping = True
        thread, self._thread = self._thread, None
        if thread is None:
            if not self._loop.is_running():
                self._loop.close()
            return
        self._tell(self._end.set)
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)  # let what the thread handed over be delivered

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def create_prefix(self, token_ids: Sequence[int], parent: Prefix | None = None) -> Prefix:
        """See `AnyEngine.create_prefix`. A server finds equal beginnings by itself."""
        ids = self._entrance.token_ids(token_ids, "a prefix")
        node = Prefix(next(self._nodes), parent, ids)
        if node.total + 2 > self.max_model_len:
            raise ContextExceeded(self.max_model_len - 2, node.total, "the prefix")
        return node

    def release_prefix(self, prefix: Prefix) -> None:
        """Nothing is kept."""

    async def warm(self, prefix: Prefix) -> None:
        """Let the servers read a prefix, if all scenes may share what they keep of it. If that does
        not work, the first who needs it waits.
        """
        if self._config.salted:
            return
        ids = self.chat.encode([Message("user", ".")], self.tokenizer)
        async for output in self.stream(ids, _WARMING, prefix=prefix, priority=2):
            if output.finish == "failed":
                _log.warning("a beginning was not warmed: %s", output.error)

    async def prepare(self, grammar: Grammar) -> None:
        """See `AnyEngine.prepare`."""
        with self._grammars.compiling(grammar) as result:
            await asyncio.shield(asyncio.wrap_future(result))
        self._grammars.check(grammar)

    def conforms(self, grammar: Grammar, text: str) -> bool:
        """See `AnyEngine.conforms`."""
        return _conforms(self._grammars, grammar, text)

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
        """See `AnyEngine.submit`.

        Raises:
            InvalidRequest: also for what these servers cannot do.
            ContextExceeded, QueueFull, Halted, EngineStopped: nothing was taken.
            RemoteUnavailable: no server answers.
        """
        if self._stopping:
            raise EngineStopped("the engine is shutting down")
        try:
            ids = self._entrance.check(prompt_ids, params, prefix, priority)
            self._check_room()
        except EngineError as error:
            self._stats.refused[error.code] += 1
            raise
        conforms = partial(self.conforms, params.grammar) if params.grammar is not None else None
        request = RemoteRequest(
            next(self._ids),
            ids,
            params,
            Reply(params, self.tokenizer, conforms),
            prefix=prefix,
            priority=priority,
            salt=_digest(salt) if self._config.salted else "",
            shares=shares,
            arrived=time.monotonic(),
        )
        self._requests[request.id] = request
        self._listeners.add(request.id, on_output)
        self._tell(partial(self._desk.add, request))
        return Ticket(request.id, ids, prefix)

    def cancel(self, ticket: Ticket) -> None:
        """See `AnyEngine.cancel`; its connection is closed at once."""
        request = self._requests.get(ticket.id)
        if request is not None:
            self._tell(partial(self._desk.cancel, request))

    def halt(self) -> None:
        """See `AnyEngine.halt`; all connections are closed at once."""
        self.halted = True
        self._tell(self._desk.cancel_all)

    def release(self) -> None:
        """See `AnyEngine.release`."""
        self.halted = False

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        pooling: PoolingKind = "mean",
        normalize: bool = True,
        priority: int = 2,
        shares: tuple[str, ...] = (),
    ) -> list[Embedding]:
        """See `AnyEngine.embed`; how vectors are made of tokens is the server's choice.

        Raises:
            InvalidRequest: the settings name no model for it.
            EngineStopped, RemoteUnavailable, RemoteFailed: the vectors cannot be had.
        """
        model = self._config.embedding_model
        if model is None:
            raise InvalidRequest("no model for embeddings is named: set remote.embedding_model")
        if not self.alive or self._stopping:
            raise EngineStopped("the engine is not running")
        read = [t if isinstance(t, str) else self.tokenizer.decode(t) for t in texts]
        asking = asyncio.run_coroutine_threadsafe(self._embed(model, read), self._loop)
        vectors = await asyncio.wrap_future(asking)
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        counts = [len(self.tokenizer.encode(text)) for text in read]
        return [Embedding(row, count) for row, count in zip(vectors, counts, strict=True)]

    def expect(self, priority: int, prefix: Prefix | None = None) -> Expectation:
        """See `AnyEngine.expect`: from how long servers usually take, and who waits here."""
        alone_s, stats = self._stats.first_s, self._stats
        ahead = sum(request.priority <= priority for request in tuple(self._desk.waiting))
        lacking = ahead + 1 - (self._config.in_flight - self._desk.running)
        wait_s = max(lacking, 0) * stats.hold_s / self._config.in_flight
        speech_s = max(stats.hold_s - alone_s, 0.0)
        return Expectation(wait_s + alone_s, alone_s, speech_s, speech_s)

    def measures(self) -> list[Series]:
        """See `AnyEngine.measures`."""
        return self._stats.measures.read()

    def gauges(self) -> dict[str, float]:
        """See `AnyEngine.gauges`."""
        desk = self._desk
        return self._stats.snapshot(desk.running, len(desk.waiting), self._servers.all)

    def _check_room(self) -> None:
        """Raise what keeps a request out just now."""
        if self.halted:
            raise Halted
        if len(self._listeners) >= self._max_open:
            raise QueueFull(self._max_waiting)
        now = time.monotonic()
        if self._servers.next_at() - now > self._config.first_token_s:
            raise self._servers.unavailable(now)

    # The engine's thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except Exception:
            _log.exception("the remote engine's thread ended")
        finally:
            self._stopping = True
            self._listeners.abandon()
            self._loop.close()

    async def _live(self) -> None:
        await self._end.wait()
        await self._desk.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._client.close()
        self._flush()

    async def _embed(self, model: str, texts: Sequence[str]) -> Vectors:
        patience_s = self._config.first_token_s
        try:
            async with self._embedding:
                return await embed(self._client, self._servers, model, texts, patience_s)
        except asyncio.CancelledError:
            if self._stopping:
                raise EngineStopped("the engine is shutting down") from None
            raise

    def _tell(self, work: Callable[[], None]) -> None:
        """Have something done in the engine's thread."""
        with contextlib.suppress(RuntimeError):  # it has ended, and everybody was told
            self._loop.call_soon_threadsafe(work)

    def _emit(self, output: RequestOutput) -> None:
        if not self._outputs:
            self._loop.call_soon(self._flush)
        self._outputs.append(output)
        if output.finish is not None:
            self._requests.pop(output.request_id, None)

    def _flush(self) -> None:
        outputs, self._outputs = self._outputs, []
        if outputs:
            self._listeners.send(outputs)


async def _find_out(
    config: RemoteConfig,
    vocabulary: Vocabulary | None,
    grammars: GrammarCompiler,
    advance: Advance,
) -> list[Dialect]:
    words = vocabulary or Vocabulary("", PackedTokenizer(), marked_chat())
    asking = [Message("user", "Say a word.")]
    prompt = words.chat.encode(asking, words.tokenizer)
    begun = words.chat.encode(asking, words.tokenizer, prefill="A word:")
    client = Client(config)
    conforms = partial(_conforms, grammars)
    form: PromptForm = "chat" if vocabulary is None else "tokens"
    probes = [
        Probe(client, base_of(url), config, form, prompt, begun, conforms) for url in config.urls
    ]
    try:
        return [await probe.dialect(advance) for probe in probes]
    finally:
        await client.close()


def _conforms(grammars: GrammarCompiler, grammar: Grammar, text: str) -> bool:
    constraint = grammars.constrain(SamplingParams(grammar=grammar))
    assert constraint is not None  # there is a grammar
    try:
        text.encode()
    except UnicodeEncodeError:
        return False  # half a character is of no grammar
    return constraint.is_whole(text)


def _digest(salt: str) -> str:
    """A salt without the names of players in it."""
    return hashlib.blake2b(salt.encode(), digest_size=16).hexdigest()
