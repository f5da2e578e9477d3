"""A player as cheap as can be: a socket, a cursor and no task, so that thousands fit one process.

Understands just enough of the protocol to come in, talk, stay and come back.
"""

import asyncio
import itertools
import json
import random
import time
from array import array
from typing import TYPE_CHECKING, Any

from tests.gameserver.raw import CLOSE, PING, PONG, TEXT, frame, upgrade_request

if TYPE_CHECKING:
    from benchmarks.load.crowd import Crowd

_DELTA = b'{"t":"npc.delta"'
#: Messages that are looked into.
_KNOWN = (b"hello", b"welc", b"scene.jo", b"say.", b"npc.turn.", b"error", b"scene.moved")
_HEADS = tuple(b'{"t":"' + name for name in _KNOWN)
_LINE = "Any rumours from the bridge tonight?"


class Room:
    """Guests in one instance of a scene, who take turns to talk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.guests: list[Guest] = []
        self._next: itertools.cycle[Guest] | None = None

    def go_on(self) -> None:
        """The next one talks."""
        if self._next is None:
            self._next = itertools.cycle(list(self.guests))
        next(self._next).say()


class Guest(asyncio.Protocol):
    """One player.

    Attributes:
        ready: whether it is where it wanted to be.
        npc: whom it talks to.
        polite: whether it waits before it comes back.
    """

    def __init__(
        self, crowd: "Crowd", name: str, npc: str, room: Room | None, *, polite: bool
    ) -> None:
        self.crowd, self.name, self.npc, self.room, self.polite = crowd, name, npc, room, polite
        self.ready = False
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._upgraded = False
        self._ids = itertools.count(1)
        self._welcome: dict[str, Any] = {}
        self._cursor = 0
        self._asked: tuple[int, float] | None = None  # id of its line, and when it was sent
        self._line = self._turn = ""
        self._last_delta = 0.0
        self._tries = 0
        self._lost_at = 0.0

    # The line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._buffer.clear()
        self._upgraded = False
        transport.write(upgrade_request())

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        was, self.ready = self.ready, False
        if was:
            self._lost_at, self._tries = time.monotonic(), 0
            self._asked = None
        self.crowd.lost(self, was)

    def again(self) -> float:
        """Seconds to wait before the next try: full jitter, as the protocol asks; or none."""
        self._tries += 1
        if not self.polite:
            return 0.05
        return random.uniform(0.0, min(30.0, 0.5 * 2**self._tries))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self._upgraded:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if not buffer.startswith(b"HTTP/1.1 101"):
                self.crowd.turned_away += 1
                assert self.transport is not None
                self.transport.abort()
                return
            del buffer[: end + 4]
            self._upgraded = True
        at = 0
        while len(buffer) - at >= 2:
            length, head = buffer[at + 1], 2
            if length == 126:
                if len(buffer) - at < 4:
                    break
                length, head = int.from_bytes(buffer[at + 2 : at + 4], "big"), 4
            if len(buffer) - at < head + length:
                break
            opcode = buffer[at] & 15
            payload = bytes(buffer[at + head : at + head + length])
            at += head + length
            if opcode == TEXT:
                self._take(payload)
            elif opcode == PING and self.transport is not None:
                self.transport.write(frame(PONG, payload))
            elif opcode == CLOSE and self.transport is not None:
                self.crowd.closes[int.from_bytes(payload[:2], "big")] += 1
                self.transport.write(frame(CLOSE, payload[:2]))
        del buffer[:at]

    def send(self, t: str, d: dict[str, Any], *, numbered: bool = True) -> int:
        """Send a message; returns its id."""
        number = next(self._ids) if numbered else 0
        message: dict[str, Any] = {"t": t, "d": d}
        if numbered:
            message["id"] = number
        if self.room is not None and t != "identify":
            message["st"] = self.room.name
        if self.transport is not None:
            self.transport.write(frame(TEXT, json.dumps(message).encode()))
        return number

    def beat(self) -> None:
        """Say that it is alive."""
        if self.ready:
            self.send("heartbeat", {"n": 1}, numbered=False)

    def say(self) -> None:
        """Talk to an NPC."""
        self._line = self._turn = ""
        self._asked = (self.send("say", {"npc": self.npc, "text": _LINE}), _now())

    # What it is told

    def _take(self, payload: bytes) -> None:
        if payload.startswith(_DELTA):
            self._hear(payload)
        elif payload.startswith(_HEADS):
            self._obey(json.loads(payload))

    def _hear(self, payload: bytes) -> None:
        crowd, now = self.crowd, _now()
        crowd.deltas += 1
        at = payload.index(b'"ts":') + 5
        crowd.late.append(time.time() * 1000 - int(payload[at : payload.index(b",", at)]))
        if self._last_delta:
            crowd.gaps.append((now - self._last_delta) * 1000)
        self._last_delta = now
        if self._turn and self._asked is not None and self._turn.encode() in payload:
            crowd.first(self, (now - self._asked[1]) * 1000)
            self._asked = None

    def _obey(self, message: dict[str, Any]) -> None:
        t, d = message["t"], message["d"]
        if "s" in message and message.get("st") not in (None, "me"):
            self._cursor = max(self._cursor, message["s"])
        if t == "hello":
            self._identify()
        elif t == "welcome":
            self._come_in(d)
        elif t == "scene.joined":
            self._arrive(resumed=False)
        elif t == "say.accepted":
            self._line = d["msg"]
        elif t == "npc.turn.start":
            self._last_delta = 0.0
            if self._line and self._line in d["cause"]:
                self._turn = d["turn"]
        elif t == "npc.turn.end":
            self._last_delta = 0.0
            self.crowd.ended(self, own=d["turn"] == self._turn)
        elif t == "error":
            self.crowd.errors[d["code"]] += 1
            if self._asked is not None and message.get("re") == self._asked[0]:
                self._asked = None
                self.crowd.refused(self, d.get("retry_ms") or 1000)

    def _identify(self) -> None:
        wish: dict[str, Any] = {"player": self.name, "auth": {"kind": "none"}}
        if self._welcome:
            cursors = [{"st": self.room.name, "s": self._cursor}] if self.room else []
            wish["resume"] = {
                "session": self._welcome["session"],
                "token": self._welcome["resume_token"],
                "cursors": cursors,
            }
        self.send("identify", wish, numbered=False)

    def _come_in(self, welcome: dict[str, Any]) -> None:
        back, self._welcome = bool(self._welcome), welcome
        if back and welcome["resumed"]:
            self._arrive(resumed=True)
        elif self.room is not None:
            scene, _, instance = self.room.name.partition(".")
            where = {"scene": scene, "instance": instance} if instance else {"scene": scene}
            self.send("scene.join", where)
        else:
            self._arrive(resumed=False)

    def _arrive(self, *, resumed: bool) -> None:
        self.ready = True
        if self._lost_at:
            self.crowd.returned(time.monotonic() - self._lost_at, resumed)
            self._lost_at = 0.0


def _now() -> float:
    return time.perf_counter()


def thinned(values: "array[float]", most: int = 4000) -> list[float]:
    """The values in order, no more than `most` of them, the largest among them."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return ordered
    step = (len(ordered) - 1) / (most - 1)
    return [ordered[round(number * step)] for number in range(most)]
