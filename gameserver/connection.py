"""One client's socket from `hello` to close."""

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import Any

import structlog
from websockets.exceptions import ConnectionClosed

from gameserver.admission import Admission, Offences, TokenBucket, rate_limited
from gameserver.commands import Identify, read
from gameserver.guards import GuardedConnection
from gameserver.inbound import Message, parse
from gameserver.messages import Hello, Reconnect, Version, Welcome
from gameserver.outbox import Outbox
from gameserver.protocol import FEATURES, MAJOR, MINOR, Close, Code, Refusal, encode, now_ms
from gameserver.session import Session
from gameserver.settings import Settings
from gameserver.tally import Tally
from gameserver.wording import clean_name
from gameserver.world import World

#: Lost without a close frame, and what the library closes with by itself.
_LIBRARY_CODES = frozenset({1002, 1006, 1007, 1009})

_log = structlog.get_logger("troupe.game")


@dataclass(frozen=True, slots=True)
class House:
    """What all connections share.

    Attributes:
        limits: as announced to clients.
    """

    settings: Settings
    world: World
    admission: Admission
    limits: dict[str, Any]
    tally: Tally


class Connection:
    """Reads a client's messages, judges them, and closes the socket in good order."""

    def __init__(self, socket: GuardedConnection, house: House) -> None:
        self._socket = socket
        self._house = house
        self._settings = house.settings
        self._address = str(socket.remote_address[0]) if socket.remote_address else ""
        self._began = time.monotonic()
        self._session: Session | None = None
        self._closing: asyncio.Task[None] | None = None
        self._identified_twice = False
        limits, guards = self._settings.limits, self._settings.guards
        self._messages = TokenBucket(limits.messages_per_s, limits.messages_burst)
        self._bytes = TokenBucket(limits.bytes_per_s, limits.bytes_burst)
        self._bad = Offences(guards.bad_messages, guards.bad_window_s)
        self._refused = Offences(guards.refused_messages, guards.bad_window_s)
        self._outbox = Outbox(socket, self._settings, house.tally)
        socket.on_writable = self._outbox.wake
        socket.on_flood = self._flood

    async def run(self) -> None:
        """Serve the client until its socket is closed. Raises nothing."""
        loop = asyncio.get_running_loop()
        self._outbox.tell(self._hello())
        patience = loop.call_later(self._settings.guards.identify_timeout_s, self._too_late)
        try:
            while self._closing is None:
                frame = await self._socket.recv()
                if self._closing is None:  # what comes after a fatal error is not looked at
                    self._receive(frame)
        except ConnectionClosed:
            self._count_close()
        finally:
            patience.cancel()
            self._end_session()
            if self._closing is not None:
                await self._closing

    def check(self, now: float) -> None:
        """See whether the client is still there. Call about once a second."""
        if self._closing is not None:
            return
        if not self._socket.check_alive(now):
            self.fail(
                Refusal(Code.HEARTBEAT_LOST, "nothing heard of you", close=Close.HEARTBEAT_LOST)
            )
        elif self._session is not None:
            self._session.check_lag(now)

    def fail(self, refusal: Refusal, re: int | None = None) -> None:
        """End the connection for a reason that the client is told first."""
        assert refusal.close is not None
        if self._closing is None:
            self._house.tally.count(f"errors_{refusal.code}")
            self._outbox.tell(refusal.encode(re))
            self._close(refusal.close, self._settings.guards.linger_s)

    async def send_away(self, delay_ms: int) -> None:
        """The server goes: say so, ask the client to come back after a while, and close."""
        if self._closing is None:
            reason = "the server is restarting"
            self._outbox.tell(encode("reconnect", Reconnect(delay_ms, reason)))
            self.fail(Refusal(Code.DRAINING, reason, retry_ms=delay_ms, close=Close.RESTART))
        if self._closing is not None:
            await asyncio.wait([self._closing])

    def _receive(self, frame: str | bytes) -> None:
        """Take one message in and answer it."""
        received = time.monotonic()
        self._house.tally.count("frames_in")
        size = len(frame) if frame.isascii() else len(frame.encode())  # type: ignore[union-attr]
        wait_s = max(self._messages.take(), self._bytes.take(size))
        if wait_s and self._refused.add():
            self.fail(rate_limited(wait_s, "messages", close=Close.RATE_LIMITED))
            return
        message = None
        try:
            message = parse(frame, self._settings.limits)
            answer, refusal = self._respond(message, received, wait_s)
        except Refusal as failure:
            re = message.id if message is not None else failure.re
            answer, refusal = failure.encode(re), failure
        if refusal is not None:
            self._refuse(refusal, answer, message)
        elif answer:
            self._outbox.tell(answer)

    def _respond(
        self, message: Message, received: float, wait_s: float
    ) -> tuple[bytes, Refusal | None]:
        """Carry a message out. Returns its answer, and what that refuses; raises `Refusal` too."""
        if self._session is None:
            return self._identify(message), None
        if message.t == "identify":
            raise self._second_identify()
        if message.t == "bye":
            self._close(Close.NORMAL, 0.0)
            return b"", None
        try:
            return self._session.handle(message, received, wait_s)
        except Exception:
            _log.exception("a command failed", type=message.t)
            raise Refusal(Code.INTERNAL, "the server made a mistake") from None

    def _refuse(self, refusal: Refusal, answer: bytes, message: Message | None) -> None:
        re = message.id if message is not None else refusal.re
        if refusal.unreadable and self._bad.add():
            refusal = Refusal(refusal.code, refusal.msg, close=Close.BAD_MESSAGES)
        if refusal.close is not None:
            self.fail(refusal, re)
        else:
            self._house.tally.count(f"errors_{refusal.code}")
            self._outbox.tell(answer)

    def _identify(self, message: Message) -> bytes:
        """Begin the session: `welcome`. Raises `Refusal`."""
        if message.t != "identify":
            raise Refusal(Code.NOT_IDENTIFIED, "identify first")
        wish = read(message)
        assert isinstance(wish, Identify)
        if wish.proto is not None and wish.proto.major != MAJOR:
            raise Refusal(Code.VERSION, f"this server speaks version {MAJOR}", close=Close.VERSION)
        missing = sorted(set(wish.need or ()) - set(FEATURES))
        if missing:
            named = ", ".join(missing)[:200]
            raise Refusal(Code.VERSION, f"this server has no {named}", close=Close.VERSION)
        if wish.auth is not None and wish.auth.kind not in (None, "none"):
            raise Refusal(Code.AUTH_FAILED, "this server knows no keys", close=Close.AUTH_FAILED)
        name = clean_name(wish.name or wish.player, self._settings.limits.name_chars)
        says = self._house.admission.enter(wish.player, self._address)
        self._session = Session(
            wish.player,
            name,
            self._outbox,
            self._house.world,
            self._settings,
            says,
            self._house.tally,
        )
        self._house.tally.count("sessions_begun")
        welcome = Welcome(
            session=self._session.id,
            resume_token=secrets.token_urlsafe(32),
            resume_ms=0,
            caps=sorted(set(wish.caps or ()) & set(FEATURES)),
            limits=self._house.limits,
            player=wish.player,
            scenes=self._house.world.titles(),
            resumed=False,
            resume_miss="this server keeps no sessions" if wish.resume is not None else None,
        )
        return encode("welcome", welcome, re=message.id)

    def _second_identify(self) -> Refusal:
        close = Close.BAD_MESSAGES if self._identified_twice else None
        self._identified_twice = True
        return Refusal(Code.ALREADY_IDENTIFIED, "you are known already", close=close)

    def _hello(self) -> bytes:
        guards = self._settings.guards
        hello = Hello(
            proto=Version(MAJOR, MINOR),
            node=self._settings.node,
            hb_ms=int(guards.heartbeat_s * 1000),
            identify_timeout_ms=int(guards.identify_timeout_s * 1000),
            limits=self._house.limits,
            features=FEATURES,
            now=now_ms(),
        )
        return encode("hello", hello)

    def _too_late(self) -> None:
        if self._session is None:
            self.fail(
                Refusal(Code.NOT_IDENTIFIED, "no identify in time", close=Close.NOT_IDENTIFIED)
            )

    def _flood(self) -> None:
        self.fail(rate_limited(1.0, "control frames", close=Close.RATE_LIMITED))

    def _close(self, code: Close, linger_s: float) -> None:
        """Close once everything said so far is out. Frees at once what the client held."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._finish(code, linger_s))
            self._house.tally.count(f"closes_{code.value}")
            self._end_session()

    def _count_close(self) -> None:
        """Count a close that was not ours, by the code that the library or the network gave."""
        code = self._socket.close_code
        if self._closing is None and code in _LIBRARY_CODES:
            self._house.tally.count(f"closes_{code}")

    async def _finish(self, code: Close, linger_s: float) -> None:
        await asyncio.sleep(0)  # the outbox writes at the end of this turn of the loop
        with contextlib.suppress(Exception):  # the client may vanish meanwhile
            await self._socket.drain()
        await asyncio.sleep(linger_s)
        await self._socket.close(code)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        session.end()
        self._house.admission.leave(session.player, self._address)
        self._house.tally.count("sessions_ended")
        seconds = round(time.monotonic() - self._began, 3)
        _log.info("session ended", session=session.id, seconds=seconds)
