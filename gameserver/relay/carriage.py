"""One client whose session is at another node: carries what both say, frame by frame.

Each client has a connection of its own to the owner of its scene, so the owner sees it as it is:
if it reads slowly, we read slowly, and the owner sends it fewer and larger deltas; nobody else
waits. When the owner is gone, the session goes on at the next one with what the `Trail` knows.
"""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from gameserver.commands import Identify
from gameserver.credentials import Credentials
from gameserver.guards import GuardedConnection
from gameserver.nodes.card import own_url
from gameserver.nodes.placement import Placement
from gameserver.protocol import MSGPACK, SUBPROTOCOL, Close, Code, Refusal
from gameserver.relay.passage import RELAY_PATH, Passage, Passages
from gameserver.relay.trail import Frame, Trail, Verdict
from gameserver.sessions import Sessions
from gameserver.settings import Settings
from gameserver.stores.store import StoreDown
from gameserver.tally import Tally

#: Pauses before another try to find the owner: a lease that ends is noticed soon.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
#: For so many leases a command is sent from node to node: by then that of a node that died has
#: ended, and if its node lives, but is out of our reach, another try leads no further.
_LEASES = 2
#: How often a client that does not read is looked at: shorter than any lease.
_LOOK_S = 0.25
_GOING_AWAY = 1001
#: Closes by an owner that mean the node and not the client; 1006 is that there was none, and 1011 a
#: fault of its own.
_OF_THE_NODE = frozenset({_GOING_AWAY, 1006, 1011, Close.RESTART, Close.MOVED, Close.STALLED})
#: Those that a client may be told.
_OURS = frozenset(Close)


@dataclass(frozen=True, slots=True)
class Junction:
    """What all carriages of a node share."""

    passages: Passages
    placement: Placement
    sessions: Sessions
    settings: Settings
    tally: Tally


@dataclass(frozen=True, slots=True)
class Client:
    """Who is carried.

    Attributes:
        socket: where it is connected.
        wish: how it identified itself.
        ident: the id of that message, if its answer is still to come.
        shown: who it is, and what it may do for that.
        on_refresh: told of its messages `auth.refresh`.
    """

    socket: GuardedConnection
    wish: Identify
    ident: int | None
    shown: Credentials
    on_refresh: Callable[[Frame], None]


class _Gone(Exception):
    """The client is not there any more."""


class Carriage:
    """Carries one client until it is gone, or its session is over."""

    def __init__(self, junction: Junction, client: Client, trail: Trail) -> None:
        self._junction = junction
        self._client = client
        self._socket = client.socket
        self._trail = trail
        self._binary = client.socket.subprotocol == MSGPACK
        self._writable = asyncio.Event()
        self._carried = 0.0  # when the client was last connected to its session
        self._blocked = -math.inf  # when it was last seen not to read

    async def run(self, node: str) -> Close | None:
        """Carry, first to the owner that is known.

        Returns:
            How to close the client's socket; None if that is closed.
        """
        tally, self._socket.on_writable = self._junction.tally, self._writable.set
        tally.count("relays")
        self._trail.hint = node
        self._carried = time.monotonic()
        pause, sent_on_at = _FIRST_PAUSE_S, math.inf
        while True:
            tried = time.monotonic()
            try:
                code = await self._attempt()
            except _Gone:
                return None
            if code is not None:
                return Close(code) if code in _OURS else Close.RESTART
            if time.monotonic() - self._carried > self._junction.settings.flow.resume_s:
                tally.count("relays_given_up")
                return Close.RESTART  # the client tries for itself
            tally.count("relay_turns")
            sent_on_at = min(sent_on_at, tried) if self._trail.sent_on else math.inf
            if tried - sent_on_at > _LEASES * self._junction.settings.store.lease_s:
                tally.count("relays_given_up")
                self._say_busy(self._trail.give_up())
            # A try that led to the session is a new beginning, unless that was only sent on.
            led = self._carried >= tried and not self._trail.sent_on
            pause = _FIRST_PAUSE_S if led else min(pause * 2, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    def _say_busy(self, re: int | None) -> None:
        """No node that we reach has the scene that a command asks for."""
        refusal = Refusal(Code.BUSY, "the node that has this scene is out of reach", retry_ms=1000)
        self._socket.write([refusal.encode(re)])

    async def _attempt(self) -> int | None:
        """Find the owner, and carry as long as it is that. Returns how to close the client's
        socket, or None to try again."""
        if self._socket.close_code is not None:
            raise _Gone
        try:
            address = await self._find()
            if address is None:
                return None
            link = await self._dial(address)
            try:
                return await self._carry(link)
            finally:
                if self._trail.welcomed:
                    self._carried = time.monotonic()
                # Without a goodbye, unless the client has said one.
                said = self._socket.close_code == Close.NORMAL
                await link.close(Close.NORMAL if said else _GOING_AWAY)
        except (StoreDown, OSError, TimeoutError, WebSocketException):
            return None

    async def _find(self) -> str | None:
        """Where to connect to the owner; None if it is not known just now."""
        junction, hint = self._junction, self._trail.hint
        self._trail.hint = ""
        if not hint:
            there = await junction.sessions.whereabouts(self._trail.session)
            # If it may go on here, it comes in by the same door as everywhere.
            hint = junction.settings.node if there is None else there.node
        card = await junction.placement.card(hint)
        return None if card is None or not card.address else card.address

    async def _dial(self, address: str) -> ClientConnection:
        junction = self._junction
        lease_s = junction.settings.store.lease_s
        passage = Passage(
            player=self._client.wish.player,
            grant=self._client.shown.grant,
            address=self._client.shown.address,
            keep_token=self._trail.known,
        )
        header = await junction.passages.issue(passage)
        return await connect(
            address + RELAY_PATH,
            subprotocols=[Subprotocol(MSGPACK if self._binary else SUBPROTOCOL)],
            additional_headers={"Authorization": header},
            compression=None,
            user_agent_header=None,
            proxy=None,
            open_timeout=lease_s,
            close_timeout=junction.settings.guards.close_timeout_s,
            ping_interval=None,  # see `_watch`
            max_size=None,
            max_queue=4,
        )

    async def _carry(self, link: ClientConnection) -> int | None:
        """Both ways at once, until one of them ends."""
        await link.send(self._introduction(), text=not self._binary)
        for frame in self._trail.waiting():
            await link.send(frame, text=not self._binary)
        down = asyncio.create_task(self._down(link))
        up = asyncio.create_task(self._up(link))
        watch = asyncio.create_task(self._watch(link))
        try:
            await asyncio.wait({down, up}, return_when=asyncio.FIRST_COMPLETED)
            if not down.done():
                up.result()  # raises, unless it is the link that ended
            return await down
        finally:
            for task in (down, up, watch):
                task.cancel()
            await asyncio.gather(down, up, watch, return_exceptions=True)

    async def _watch(self, link: ClientConnection) -> None:
        """Give the link up if the owner does not answer for as long as a lease: it has lost its
        scenes. While a client reads slowly we do not read either, and see no answers."""
        period_s = self._junction.settings.store.lease_s / 2
        while True:
            await asyncio.sleep(period_s)
            try:
                async with asyncio.timeout(period_s):
                    await (await link.ping())
            except TimeoutError:
                if time.monotonic() - self._blocked > period_s * 2:
                    link.transport.abort()
                    return

    def _introduction(self) -> bytes:
        """The client's own `identify` if it waits for `welcome`, else one that it need not know."""
        wish, ident = msgspec.structs.replace(self._client.wish, auth=None), self._client.ident
        if self._trail.known:
            wish, ident = msgspec.structs.replace(wish, resume=self._trail.resume()), None
        return self._encode({"t": "identify", "id": ident, "d": wish})

    async def _up(self, link: ClientConnection) -> None:
        """What the client says. Ends with the link; raises `_Gone` at the end of the client."""
        while True:
            try:
                frame = await self._socket.recv()
            except ConnectionClosed as closed:
                raise _Gone from closed
            self._junction.tally.count("frames_in")
            if self._trail.asked(frame) == "auth.refresh":
                self._client.on_refresh(frame)
            try:
                await link.send(frame)
            except ConnectionClosed:
                return

    async def _down(self, link: ClientConnection) -> int | None:
        """What the owner says. Returns how to close the client's socket, or None to try again."""
        while True:
            try:
                frame: bytes = await link.recv(decode=False)
            except ConnectionClosed:
                code = link.close_code or 1006
                return None if code in _OF_THE_NODE else code
            match self._trail.told(frame):
                case Verdict.PASS:
                    await self._deliver(frame)
                case Verdict.SEND_ON:
                    await self._deliver(self._to_us(frame))
                case Verdict.LEAVE:
                    return None
                case Verdict.OVER:
                    await link.close(Close.NORMAL)
                    return Close.RESTART  # the client comes back, and is told why it begins anew
                case Verdict.KEEP:
                    pass

    async def _deliver(self, frame: bytes) -> None:
        """Hand a message to the client once it can take it: until then nothing more is read."""
        while not self._socket.writable:
            self._blocked = time.monotonic()
            self._writable.clear()
            if self._socket.close_code is not None:
                raise _Gone
            with contextlib.suppress(TimeoutError):  # nobody says so when it is closed
                await asyncio.wait_for(self._writable.wait(), _LOOK_S)
        self._socket.pass_on(frame)

    def _to_us(self, frame: bytes) -> bytes:
        """A client that we carry for one scene comes to us for the next one, too: it may have no
        way to other nodes."""
        read = msgspec.msgpack.decode if self._binary else msgspec.json.decode
        message: dict[str, Any] = read(frame)
        message["d"]["url"] = own_url(self._junction.settings)
        return self._encode(message)

    def _encode(self, message: object) -> bytes:
        write = msgspec.msgpack.encode if self._binary else msgspec.json.encode
        return write(message)
