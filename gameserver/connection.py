"""One client's socket from `hello` to close."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import structlog
from websockets.exceptions import ConnectionClosed

from gameserver.access import Access
from gameserver.addresses import Proxies
from gameserver.admission import Offences, TokenBucket, rate_limited
from gameserver.commands import AuthRefresh, Identify, read
from gameserver.credentials import Credentials
from gameserver.guards import GuardedConnection
from gameserver.households import UNLIMITED, Households
from gameserver.inbound import Message, parse
from gameserver.messages import Ack, Hello, Notice, Reconnect, SceneMoved, Version, Welcome
from gameserver.nodes.neighbours import Neighbours
from gameserver.outbox import Outbox
from gameserver.overload.overload import Overload
from gameserver.protocol import MAJOR, MINOR, MSGPACK, Close, Code, Encoded, Refusal, encode, now_ms
from gameserver.relay.carriage import Client
from gameserver.rounds import Rounds
from gameserver.safety import Safety
from gameserver.session import Session
from gameserver.sessions import Sessions
from gameserver.settings import Settings
from gameserver.stores.journal import Journal
from gameserver.stores.store import Elsewhere, StoreDown
from gameserver.tally import Tally
from gameserver.turnstile import Turnstile
from gameserver.wording import clean_name
from gameserver.world import World

#: Closes of ours after which the client may go on with its session.
_RESUMABLE = frozenset({Close.WRONG_FRAME, Close.RATE_LIMITED, Close.HEARTBEAT_LOST, Close.STALLED})
#: Lost without a close frame, and what the library closes with by itself.
_LIBRARY_CODES = frozenset({1002, 1006, 1007, 1009})

_log = structlog.get_logger("troupe.game")


@dataclass(frozen=True, slots=True)
class House:
    """What all connections share.

    Attributes:
        limits, features: as announced to clients.
        rounds: when each connection is looked at.
        neighbours: None where there can be no other nodes.
    """

    settings: Settings
    world: World
    sessions: Sessions
    journal: Journal
    limits: dict[str, Any]
    features: tuple[str, ...]
    tally: Tally
    safety: Safety
    access: Access
    proxies: Proxies
    households: Households
    overload: Overload
    turnstile: Turnstile
    rounds: "Rounds[Connection]"
    neighbours: Neighbours | None


class Connection:
    """Reads a client's messages, judges them, and closes the socket in good order."""

    def __init__(self, socket: GuardedConnection, house: House) -> None:
        self._socket = socket
        self._house = house
        self._binary = socket.subprotocol == MSGPACK
        self._settings = house.settings
        self._session: Session | None = None
        self._closing: asyncio.Task[None] | None = None
        self._identified_twice = False
        self._shown = Credentials(socket, house.access, house.proxies, house.neighbours)
        socket.forget_handshake()
        self._wish: Identify | None = None  # while it is being looked at, and once it is granted
        self._late = False  # whether the time to identify is over
        self._token = ""  # for the relay alone: it goes on with the session without its client
        limits, guards = self._settings.limits, self._settings.guards
        self._household = UNLIMITED  # until it is known whether another node speaks for somebody
        self._messages = TokenBucket(limits.messages_per_s, limits.messages_burst)
        self._bytes = TokenBucket(limits.bytes_per_s, limits.bytes_burst)
        self._bad = Offences(guards.bad_messages, guards.bad_window_s)
        self._refused = Offences(guards.refused_messages, guards.bad_window_s)
        self._outbox = Outbox(socket, self._settings, house.tally, house.journal)
        socket.on_writable = self._outbox.wake
        socket.on_flood = self._flood

    async def run(self) -> None:
        """Serve the client until its socket is closed. Raises nothing."""
        loop = asyncio.get_running_loop()
        self._outbox.tell(self._hello(), at_once=True)
        patience = loop.call_later(self._settings.guards.identify_timeout_s, self._too_late)
        if self._socket.flooded:  # before we were here to be told
            self._flood()
        try:
            await self._shown.come_through()
            self._household = self._house.households.of(self._shown.address)
            while self._closing is None:
                frame = await self._socket.recv()
                if self._closing is None:  # what comes after a fatal error is not looked at
                    await self._receive(frame)
        except (Refusal, StoreDown) as problem:
            unclear = Refusal(Code.BUSY, "ask again", retry_ms=1000, close=Close.OVERLOADED)
            self.fail(problem if isinstance(problem, Refusal) else unclear)
        except ConnectionClosed:
            self._count_close()
        finally:
            patience.cancel()
            self._part(keep=self._socket.close_code != Close.NORMAL)
            if self._closing is not None:
                await self._closing

    def check(self, now: float) -> float | None:
        """See whether the client is still there. Returns when to look again, in monotonic seconds;
        None: never, it is being closed."""
        if self._closing is not None:
            return None
        again = self._socket.check_alive(now)
        if again is None:
            self.fail(
                Refusal(Code.HEARTBEAT_LOST, "nothing heard of you", close=Close.HEARTBEAT_LOST)
            )
        elif self._session is not None:
            again = min(again, self._session.check_lag(now), now + self._check_pass())
        return again

    def fail(self, refusal: Refusal, re: int | None = None) -> None:
        """End the connection for a reason that the client is told first."""
        assert refusal.close is not None
        if self._closing is None:
            self._house.tally.count(f"errors_{refusal.code}")
            # Of a client without a session nothing is kept: it waits for no store.
            self._outbox.tell(refusal.encode(re), at_once=self._session is None)
            self._close(refusal.close, self._settings.guards.linger_s)

    def tell(self, notice: Notice) -> None:
        """Tell a client that has a session something that concerns everybody."""
        if self._session is not None and self._closing is None:
            self._outbox.tell(encode("notice", notice), at_once=True)

    async def send_away(self, delay_ms: int) -> None:
        """The server goes: say so, ask the client to come back after a while, and close."""
        if self._closing is None:
            reason = "the server is restarting"
            reconnect = encode("reconnect", Reconnect(delay_ms, reason))
            self._outbox.tell(reconnect, at_once=self._session is None)
            self.fail(Refusal(Code.DRAINING, reason, retry_ms=delay_ms, close=Close.RESTART))
        if self._closing is not None:
            await asyncio.wait([self._closing])

    async def _receive(self, frame: str | bytes) -> None:
        """Take one message in and answer it."""
        received = time.monotonic()
        self._house.tally.count("frames_in")
        size = len(frame.encode() if isinstance(frame, str) else frame)
        wait_s = max(self._messages.take(), self._bytes.take(size))
        wait_s = wait_s or self._household.message(size)  # a flood of one is not the others' fault
        if wait_s and self._refused.add():
            self.fail(rate_limited(wait_s, "messages", close=Close.RATE_LIMITED))
            return
        message = None
        try:
            message = parse(frame, self._settings.limits, binary=self._binary)
            if message.t != "heartbeat" and self._house.journal.doubtful:
                await self._house.journal.prove(self._settings.store.wait_s)
            elsewhere = None if wait_s else await self._prepare(message)
            if self._closing is not None or (self._session is not None and self._session.parted):
                return  # in the second case the client is about to hear of it, and asks again there
            if elsewhere is not None:
                await self._go_on(message, frame, elsewhere)
                return
            answer, refusal = self._respond(message, received, wait_s)
        except Refusal as failure:
            answer, refusal = self._answer(failure, message, frame)
        if refusal is not None and answer is not None:
            self._refuse(refusal, answer, message)
            if self._session is None:  # it may try again, in what is left of its time
                self._wish = None
                if self._late:
                    self._too_late()
        elif answer is not None:
            alive = message is not None and message.t == "heartbeat" and self._is_stuck
            self._outbox.tell(answer, at_once=alive)

    def _answer(
        self, failure: Refusal, message: Message | None, frame: str | bytes
    ) -> tuple[Encoded | None, Refusal | None]:
        """What a message is told that did not get as far as being handled."""
        if message is not None:
            return failure.encode(message.id), failure
        if self._session is None or failure.re is None:
            return failure.encode(failure.re), failure
        body = frame.encode() if isinstance(frame, str) else frame
        return self._session.refuse(failure.re, body, failure)

    async def _prepare(self, message: Message) -> Elsewhere | None:
        """Read what a message is about from the store: carrying it out waits for nothing. Returns
        the node to which it should go instead."""
        house = self._house
        if message.t == "identify" and self._session is None:
            wish = read(message)
            assert isinstance(wish, Identify)
            self._wish = wish
            if later_s := self._household.identify():
                raise rate_limited(later_s, "clients of one address", close=Close.RATE_LIMITED)
            await house.turnstile.enter(comes_back=wish.resume is not None)
            if self._socket.close_code is not None:  # its token is still good, and is its own
                raise self._socket.protocol.close_exc
            await self._shown.redeem(wish)
            if wish.resume is not None:
                self._shown.admit(wish)  # before anything is touched
                return await house.sessions.fetch(wish.resume, self._shown.account(wish.player))
        elif message.t == "scene.join" and self._session is not None:
            return await self._session.prepare(message, house.sessions.bind)
        return None

    async def _go_on(self, message: Message, frame: str | bytes, elsewhere: Elsewhere) -> None:
        """Another node has what a client wants. A session goes there as a whole, carried by us or
        by its client; for one more scene the client begins one there."""
        neighbours, session, wish = self._house.neighbours, self._session, read(message)
        assert neighbours is not None
        assert self._wish is not None
        player, relay = self._wish.player, neighbours.relay
        if relay is not None and self._shown.passage is None and not (session and session.scenes):
            self._session = None
            client = Client(self._socket, self._wish, message.id, self._shown, self._new_grant)
            code = await (
                relay.resume(client, elsewhere)
                if session is None
                else relay.move(client, session, self._token, self._outbox, frame, elsewhere)
            )
            if code is not None:
                self._close(code, self._settings.guards.linger_s)
            return
        moved = await neighbours.directions(wish, player, self._shown.grant, elsewhere)
        self._house.tally.count("redirects")
        answer = encode("scene.moved", moved, st=message.st, re=message.id)
        # Of whom nothing is kept, waits for no store.
        self._outbox.tell(answer, at_once=self._session is None)
        if session is None:
            self._leave_for_another_node()

    def _new_grant(self, frame: str | bytes) -> None:
        """A carried client sends `auth.refresh`: its node decides, but we have to know, too, when
        its session goes on at another one."""
        with contextlib.suppress(Refusal):
            wish = read(parse(frame, self._settings.limits, binary=self._binary))
            if isinstance(wish, AuthRefresh) and self._wish is not None:
                self._shown.refresh(wish.auth, self._wish.player)

    def _leave_for_another_node(self) -> None:
        self.fail(Refusal(Code.MOVED, "another node has your scene", close=Close.MOVED))

    @property
    def _is_stuck(self) -> bool:
        """Whether what happens cannot be kept just now."""
        journal = self._house.journal
        return journal.late or journal.waiting_s >= self._settings.store.wait_s

    def _respond(
        self, message: Message, received: float, wait_s: float
    ) -> tuple[Encoded | None, Refusal | None]:
        """Carry a message out. Returns its answer, and what that refuses; raises `Refusal` too."""
        if self._session is None:
            if message.t == "identify" and self._is_stuck:
                self._house.tally.count("errors_store")
                msg = "no session can be kept just now"
                raise Refusal(Code.BUSY, msg, retry_ms=1000, close=Close.OVERLOADED)
            self._identify(message)
            return None, None
        if message.t == "identify":
            raise self._second_identify()
        if message.t == "auth.refresh":
            self._refresh(message)
            return None, None
        if message.t == "bye":
            self._close(Close.NORMAL, 0.0)
            return None, None
        if message.t != "heartbeat" and self._is_stuck:
            msg = "what happens cannot be kept just now"
            refusal = Refusal(Code.BUSY, msg, retry_ms=1000)
            self._house.tally.count("errors_store")
            self._outbox.tell(refusal.encode(message.id, message.st), at_once=True)
            return None, None
        try:
            return self._session.handle(message, received, wait_s)
        except Exception:
            _log.exception("a command failed", type=message.t)
            raise Refusal(Code.INTERNAL, "the server made a mistake") from None

    def _refuse(self, refusal: Refusal, answer: Encoded, message: Message | None) -> None:
        re = message.id if message is not None else refusal.re
        if refusal.unreadable and self._bad.add():
            refusal = Refusal(refusal.code, refusal.msg, close=Close.BAD_MESSAGES)
        if refusal.close is not None:
            self.fail(refusal, re)
        else:
            self._house.tally.count(f"errors_{refusal.code}")
            self._outbox.tell(answer)

    def _identify(self, message: Message) -> None:
        """Let a client in, or raise `Refusal`."""
        if message.t != "identify":
            raise Refusal(Code.NOT_IDENTIFIED, "identify first")
        wish = read(message)
        assert isinstance(wish, Identify)
        if wish.proto is not None and wish.proto.major != MAJOR:
            raise Refusal(Code.VERSION, f"this server speaks version {MAJOR}", close=Close.VERSION)
        missing = sorted(set(wish.need or ()) - set(self._house.features))
        if missing:
            named = ", ".join(missing)[:200]
            raise Refusal(Code.VERSION, f"this server has no {named}", close=Close.VERSION)
        self._shown.admit(wish)
        self._enter(wish, message.id)

    def _enter(self, wish: Identify, re: int | None) -> None:
        """Take the client's session up, or begin a new one, and tell: `welcome`."""
        sessions, resume, miss = self._house.sessions, wish.resume, None
        account = self._shown.account(wish.player)
        name = clean_name(wish.name or wish.player, self._settings.limits.name_chars)
        name = self._house.safety.redact(name)
        if resume is not None:
            miss = sessions.objection(account, resume)
        resumed = resume is not None and miss is None
        if resume is not None and resumed:
            session = sessions.resume(resume, self._outbox, self._parted)
        else:
            session = sessions.begin(
                account,
                name,
                self._shown.address,
                self._outbox,
                self._parted,
                make_room=resume is None,
            )
        self._session = session
        session.grant, session.household = self._shown.grant, self._household
        self._house.rounds.look(self, time.monotonic())  # there is more to look after
        caps = self._outbox.caps = frozenset(wish.caps or ()).intersection(self._house.features)
        passage = self._shown.passage
        if passage is None or not passage.keep_token:
            self._token = sessions.new_token(session)
        welcome = Welcome(
            session=session.id,
            resume_token=self._token,
            resume_ms=sessions.resume_ms,
            caps=sorted(caps),
            limits=self._house.limits,
            player=wish.player,
            scenes=self._house.world.titles(session.grant),
            resumed=resumed,
            resume_miss=miss,
        )
        self._outbox.tell(encode("welcome", welcome, re=re))
        if (degraded := self._house.overload.notice()) is not None:
            self._outbox.tell(encode("notice", degraded))
        if resume is not None and resumed:
            session.recover(resume)

    def _refresh(self, message: Message) -> None:
        """Go on with a new credential, or raise `Refusal`, which is fatal."""
        wish = read(message)
        assert isinstance(wish, AuthRefresh) and self._session is not None
        self._shown.refresh(wish.auth, self._session.player)
        self._session.grant = self._shown.grant
        self._house.rounds.look(self, time.monotonic())  # it may expire before the old one
        self._outbox.tell(encode("ack", Ack(), re=message.id))

    def _check_pass(self) -> float:
        """Ask for a new token when the old one has expired; end the connection if none comes.
        Returns in how many seconds that may be."""
        grace_s = self._settings.auth.refresh_s
        try:
            if self._shown.must_ask(grace_s):
                data = {"refresh_ms": int(grace_s * 1000)}
                self._outbox.tell(encode("notice", Notice("auth_expired", data)))
        except Refusal as expired:
            self.fail(expired)
        return self._shown.lasts_s(grace_s)

    def _parted(self, moved: SceneMoved | None) -> None:
        """The session goes on at another connection, or at another node."""
        self._session = None
        if moved is not None:
            self._outbox.tell(encode("scene.moved", moved), at_once=True)
            self._leave_for_another_node()
            return
        self.fail(Refusal(Code.REPLACED, "the session goes on elsewhere", close=Close.REPLACED))

    def _second_identify(self) -> Refusal:
        close = Close.BAD_MESSAGES if self._identified_twice else None
        self._identified_twice = True
        return Refusal(Code.ALREADY_IDENTIFIED, "you are known already", close=close)

    def _hello(self) -> Encoded:
        guards = self._settings.guards
        hello = Hello(
            proto=Version(MAJOR, MINOR),
            node=self._settings.node,
            hb_ms=int(guards.heartbeat_s * 1000),
            identify_timeout_ms=int(guards.identify_timeout_s * 1000),
            limits=self._house.limits,
            features=self._house.features,
            now=now_ms(),
        )
        return encode("hello", hello)

    def _too_late(self) -> None:
        self._late = True
        if self._session is None and self._wish is None:
            self.fail(
                Refusal(Code.NOT_IDENTIFIED, "no identify in time", close=Close.NOT_IDENTIFIED)
            )

    def _flood(self) -> None:
        self.fail(rate_limited(1.0, "control frames", close=Close.RATE_LIMITED))

    def _close(self, code: Close, linger_s: float) -> None:
        """Close once everything said so far is out. Frees at once what the client held."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._finish(code, linger_s))
            guards = self._settings.guards
            self._socket.end_within(guards.stall_s + linger_s + guards.close_timeout_s)
            self._house.tally.count(f"closes_{code.value}")
            self._socket.forget_unread()
            kept = code == Close.RESTART and self._house.journal.store.survives
            self._part(keep=kept or code in _RESUMABLE)

    def _count_close(self) -> None:
        """Count a close that was not ours, by the code that the library or the network gave."""
        code = self._socket.failure or self._socket.close_code
        if self._closing is None and code in _LIBRARY_CODES:
            self._house.tally.count(f"closes_{code}")

    async def _finish(self, code: Close, linger_s: float) -> None:
        await asyncio.sleep(0)  # the outbox writes at the end of this turn of the loop
        with contextlib.suppress(Exception):  # the client may vanish meanwhile
            await self._socket.drain()
        await asyncio.sleep(linger_s)
        await self._socket.close(code)

    def _part(self, *, keep: bool) -> None:
        """Let go of the session: it ends, or waits for its player."""
        session, self._session = self._session, None
        if session is not None and not session.parted:
            (self._house.sessions.lose if keep else self._house.sessions.end)(session)
