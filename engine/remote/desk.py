"""Who waits and whom a server is asked about: the schedule of a remote engine.

Only so many requests are at the servers at a time. All others wait here, in the order of our own
policies, so that quest-givers go first whatever the servers do. A request that came to nothing
before its first word goes back to those who wait, with the age it has.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from engine.config import EngineConfig
from engine.errors import EngineError, RemoteFailed, RemoteUnavailable
from engine.outputs import FinishReason, RequestOutput
from engine.policy import make_policy
from engine.remote.client import Client, Trouble
from engine.remote.config import RemoteConfig
from engine.remote.dialect import Dialect
from engine.remote.events import Nonsense, Piece
from engine.remote.patience import Patience
from engine.remote.request import RemoteRequest
from engine.remote.servers import Server, Servers
from engine.remote.stats import RemoteStats

_log = logging.getLogger("troupe.engine.remote")
#: What players and callers are told; addresses and words of servers are for the log.
SAYS = {
    "unreachable": "no model server answers",
    "slow": "the model server took too long",
    "cut": "the model server broke off",
    "nonsense": "the model server sent nonsense",
    "busy": "the model servers are busy",
    "failed": "the model server failed",
    "refused": "the model server refused the request",
}
#: Bytes that an event of one token may have, and what is let pass in any case.
_BYTES_PER_TOKEN, _SPARE_BYTES = 4096, 1 << 20


class Desk:
    """Hands requests to servers, and their words to `emit`. Used in one event loop only.

    Attributes:
        waiting: no server is asked about them now.
        servers: that can be asked.
    """

    def __init__(
        self,
        client: Client,
        dialect: Dialect,
        servers: Servers,
        config: RemoteConfig,
        order: EngineConfig,
        stats: RemoteStats,
        emit: Callable[[RequestOutput], None],
    ) -> None:
        """
        Args:
            order: who goes first.
            emit: is given all outputs, the last of each request with `finish`.
        """
        self.waiting: list[RemoteRequest] = []
        self.servers = servers
        self._client = client
        self._dialect = dialect
        self._config = config
        self._policy = make_policy(order)
        self._stats = stats
        self._emit = emit
        self._running: dict[RemoteRequest, asyncio.Task[None]] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        """How many requests are at the servers."""
        return len(self._running)

    def add(self, request: RemoteRequest) -> None:
        """Take a request in."""
        self.waiting.append(request)
        self._hand_out()

    def cancel(self, request: RemoteRequest) -> None:
        """End a request wherever it is, and its connection with it. Idempotent."""
        if request.ended:
            return
        self._end(request, "cancelled")
        if request in self._running:
            self._running[request].cancel()
        else:
            self.waiting.remove(request)

    def cancel_all(self) -> None:
        """End all requests."""
        for request in (*self.waiting, *self._running):
            self.cancel(request)

    async def close(self) -> None:
        """End all requests, and wait until their connections are closed."""
        self.cancel_all()
        if self._alarm is not None:
            self._alarm.cancel()
        tasks = [*self._running.values(), *self._watching]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Who goes when

    def _hand_out(self) -> None:
        """Ask servers about those who wait, as far as there are slots and servers for them."""
        now = time.monotonic()
        while (request := self._next(now)) is not None:
            server = self.servers.choose(now)
            if server is None:
                self._wait_for_a_server(now)
                return
            self.waiting.remove(request)
            request.scheduled_at = now
            request.tries += 1
            self._stats.asked += 1
            self._stats.retried += request.tries > 1
            self._policy.served(request, len(request.prompt_ids), now)
            server.asked += 1
            task = asyncio.get_running_loop().create_task(self._speak(request, server))
            task.add_done_callback(partial(self._left, request, server))
            self._running[request] = task

    def _next(self, now: float) -> RemoteRequest | None:
        """Who goes next, if anybody can."""
        free = self._config.in_flight - len(self._running)
        ordinary = sum(request.priority > 0 for request in self._running)
        if free <= 0:
            return None
        closed = ordinary >= self._config.in_flight - self._config.reserved
        able = (r for r in self.waiting if r.priority == 0 or not closed)
        return min(able, key=lambda request: self._policy.key(request, now), default=None)

    def _wait_for_a_server(self, now: float) -> None:
        """Nobody can be asked: come back when somebody can, or give up if that is too far off."""
        wait_s = self.servers.next_at() - now
        if wait_s > self._config.first_token_s:
            for request in self.waiting.copy():
                self.waiting.remove(request)
                self._fail(request, self.servers.unavailable(now))
            return
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(max(wait_s, 0.0), self._hand_out)

    # One request at a server

    def _left(self, request: RemoteRequest, server: Server, task: asyncio.Task[None]) -> None:
        """A request has left its server, whatever came of it. A task that was cancelled before it
        began has run nothing of its own, so this is no part of it.
        """
        del self._running[request]
        server.asked -= 1
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Trouble):
            self._troubled(request, server, error)
        elif error is not None:  # a fault of ours ends this request, not the engine
            _log.error("a remote request failed", exc_info=error)
            self._fail(request, RemoteFailed("the reply broke off"))
        self._hand_out()

    async def _speak(self, request: RemoteRequest, server: Server) -> None:
        """Have a reply said. Raises `Trouble` if it is not said to its end."""
        body = self._dialect.request(
            request.all_prompt_ids(), request.params, priority=request.priority, salt=request.salt
        )
        most_tokens = request.params.max_tokens
        pieces = self._client.stream(
            server.base,
            self._dialect.path,
            body | self._config.extra,
            _BYTES_PER_TOKEN * most_tokens + _SPARE_BYTES,
        )
        loop = asyncio.get_running_loop()
        patience = Patience(self._config, most_tokens, loop.time())
        async with aclosing(pieces):
            while True:
                try:
                    async with asyncio.timeout_at(patience.due):
                        piece = await anext(pieces, None)
                except (Trouble, TimeoutError) as error:
                    if request.finish is None:
                        late = Trouble("slow", f"{server.base} took too long")
                        raise error if isinstance(error, Trouble) else late from None
                    piece = None  # all that counts is here
                if piece is None or self._take(request, piece):
                    break
                if piece.text:
                    patience.spoke(loop.time())
                if request.finish is not None:
                    patience.finished(loop.time())
        if not request.ended:
            if request.finish is None:
                raise Trouble("cut", f"{server.base} broke off in the middle of a reply")
            self._end(request, request.finish, text=request.reply.flush())
        self.servers.answered(server)

    def _take(self, request: RemoteRequest, piece: Piece) -> bool:
        """Take in a piece; whether nothing more is needed. Words after the end are none."""
        over = request.finish is not None
        request.bill = piece.bill or request.bill
        request.finish = request.finish or piece.finish
        if piece.text and not request.ended and not over:
            now = time.monotonic()
            try:
                released, ids = request.reply.push(piece.text)
            except Nonsense as error:
                raise Trouble("nonsense", str(error)) from error
            self._stats.has_token(request, now)
            self._policy.spoke([request], now)
            if released.finish is not None:
                self._end(request, released.finish, text=released.text, ids=ids)
                return True
            if released.text or ids:
                self._emit(RequestOutput(request.id, released.text, ids))
        if piece.done and request.finish is None:
            request.finish = "stop"  # some servers leave the reason out
        return piece.done

    # How requests end

    def _troubled(self, request: RemoteRequest, server: Server, trouble: Trouble) -> None:
        now = time.monotonic()
        self._stats.troubles[trouble.kind] += 1
        _log.warning("request %d at %s: %s", request.id, server.base, trouble.brief)
        if self.servers.troubled(server, trouble, now):
            watch = asyncio.get_running_loop().create_task(self._watch(server))
            self._watching.add(watch)
            watch.add_done_callback(self._watching.discard)
        if request.ended:
            return
        fresh = request.first_token_at is None
        if trouble.again and fresh and request.tries <= self._config.retries:
            self.waiting.append(request)
            return
        if fresh and trouble.again:
            self._fail(request, RemoteUnavailable(SAYS[trouble.kind]))
        else:
            self._fail(request, RemoteFailed(SAYS[trouble.kind]))

    async def _watch(self, server: Server) -> None:
        """Ask a server that is down for its models until it answers."""
        while True:
            await asyncio.sleep(self.servers.backoff(server))
            try:
                async with asyncio.timeout(self._config.connect_s):
                    await self._client.ask("GET", server.base, "models")
            except Exception as error:
                if isinstance(error, Trouble) and error.kind == "refused":
                    break  # without a list of models, it is there all the same
                if not isinstance(error, (Trouble, TimeoutError)):
                    _log.exception("%s was asked in vain", server.base)  # asked again all the same
                server.failures += 1
            else:
                break
        self.servers.back(server)
        self._hand_out()

    def _fail(self, request: RemoteRequest, error: EngineError) -> None:
        self._end(request, "failed", error=str(error), refusal=error)

    def _end(
        self,
        request: RemoteRequest,
        reason: FinishReason,
        *,
        text: str = "",
        ids: tuple[int, ...] = (),
        error: str | None = None,
        refusal: EngineError | None = None,
    ) -> None:
        if request.ended:
            return
        request.ended = True
        usage = request.usage(time.monotonic())
        self._stats.finished(reason, usage, request.priority)
        complete = request.reply.complete if reason in ("stop", "length") else None
        self._emit(
            RequestOutput(request.id, text, ids, reason, usage, error, refusal, complete=complete)
        )
