"""A client that loses its connection and goes on, as `docs/sessions.md` asks of a library."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from gameserver.game import GameServer
from tests.gameserver.raw import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    RawClient,
    frame,
    upgrade_request,
)
from tests.gameserver.stage import SCENE

Message = dict[str, Any]
Codec = tuple[int, Callable[[Any], bytes], Callable[[bytes], Any]]

FRAMINGS: dict[str, Codec] = {
    "npc.v1.json": (TEXT, msgspec.json.encode, msgspec.json.decode),
    "npc.v1.msgpack": (BINARY, msgspec.msgpack.encode, msgspec.msgpack.decode),
}


class Lost(Exception):
    """The connection is gone."""


class Wanderer:
    """Keeps what a client must keep over connections, and checks all that it is told.

    Attributes:
        welcome: the latest one.
        events: by stream and number, without those it was told to be gone.
        ended: the text of each turn that ended.
        answers: by command id.
        log: every message, over all connections.
        forgiving: whether the server may have crashed, and forgotten the last moment of a turn.
        budget: bytes that may still pass in each direction before the line is cut; None: any.
    """

    def __init__(self, server: GameServer, name: str, framing: str = "npc.v1.json") -> None:
        self.server, self.name, self.framing = server, name, framing
        self._opcode, self._encode, self._decode = FRAMINGS[framing]
        self.welcome: Message = {}
        self.events: dict[tuple[str, int], Message] = {}
        self.ended: dict[str, str] = {}
        self.answers: dict[int, Message] = {}
        self.log: list[Message] = []
        self.cursors: dict[str, int] = {}
        self.texts: dict[str, tuple[str, int]] = {}
        self.forgiving = False
        self.budget: dict[str, int | None] = {"in": None, "out": None}
        self._epochs: dict[str, int] = {}
        self._open: dict[int, Message] = {}  # commands without an answer
        self._last_id = 0
        self._raw: RawClient | None = None

    async def connect(self, *, resume: bool = True) -> None:
        """Connect, go on where it was if there is something to go on with, send again what has no
        answer."""
        raw = await RawClient.connect(self.server)
        try:
            raw.writer.write(upgrade_request(subprotocol=self.framing))
            head = await raw.head()
        except BaseException:
            raw.drop()
            raise
        if not head.startswith("HTTP/1.1 101"):
            raw.drop()
            raise Lost
        self._raw = raw  # not before: commands must not overtake `identify`
        identity: Message = {"player": self.name, "auth": {"kind": "none"}}
        if self.welcome and resume:
            identity["resume"] = self.resume_wish()
        # No waiting for `hello`: whatever a client may send early, it does here.
        self._send({"t": "identify", "d": identity})
        for command in self._open.values():
            self._send(command)
        while (await self.receive())["t"] != "welcome":
            pass

    def resume_wish(self) -> Message:
        """What `identify` carries to go on."""
        return {
            "session": self.welcome["session"],
            "token": self.welcome["resume_token"],
            "cursors": [{"st": st, "s": s} for st, s in self.cursors.items()],
            "turns": [{"turn": turn, "next_i": n} for turn, (_, n) in self.texts.items()],
        }

    def command(self, t: str, d: Message | None = None) -> int:
        """Send a command, now or as soon as it is connected again. Returns its id."""
        self._last_id += 1
        self._open[self._last_id] = {"t": t, "id": self._last_id, "st": SCENE, "d": d or {}}
        self._send(self._open[self._last_id])
        return self._last_id

    async def ask(self, t: str, d: Message | None = None) -> Message:
        """Send a command and wait for its answer."""
        number = self.command(t, d)
        while number not in self.answers:
            await self.receive()
        return self.answers[number]

    async def until(self, t: str, **fields: Any) -> Message:
        """The next message of a type with these fields in its payload."""
        while True:
            message = await self.receive()
            if message["t"] == t and fields.items() <= message["d"].items():
                return message

    async def receive(self) -> Message:
        """The next message, checked and kept. Raises `Lost`."""
        if self._raw is None:
            raise Lost
        try:
            opcode, payload = await self._frame()
            while opcode == PING and self._raw is not None:  # a test on a slow machine takes long
                self._raw.writer.write(frame(PONG, payload))
                opcode, payload = await self._frame()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.drop()
            raise Lost from error
        if opcode == CLOSE:
            self.drop()
            raise Lost
        assert opcode == self._opcode
        message: Message = self._decode(payload)
        self.log.append(message)
        self._keep(message)
        return message

    def drop(self) -> None:
        """Lose the connection."""
        if self._raw is not None:
            self._raw.drop()
            self._raw = None

    async def _frame(self) -> tuple[int, bytes]:
        """A frame, unless the line is cut inside it."""
        assert self._raw is not None
        opcode, payload = await self._raw.frame()
        left = self.budget["in"]
        if left is not None:
            self.budget["in"] = left = left - len(payload) - (2 if len(payload) < 126 else 4)
            if left < 0:
                raise ConnectionError
        return opcode, payload

    def _send(self, message: Message) -> None:
        if self._raw is None:
            return
        data = frame(self._opcode, self._encode(message))
        left = self.budget["out"]
        if left is not None:
            self.budget["out"] = left - len(data)
            data = data[:left]
        self._raw.writer.write(data)
        if left is not None and left <= len(data):
            self._raw.writer.close()  # what was written still arrives
            self._raw = None

    def _keep(self, message: Message) -> None:
        t, d, st, s = message["t"], message["d"], message.get("st"), message.get("s")
        if st is not None and "ep" in message:
            assert message["ep"] >= self._epochs.get(st, 0)
            self._epochs[st] = message["ep"]
        if message.get("re") is not None:
            known = self.answers.setdefault(message["re"], message)
            assert known == message
            self._open.pop(message["re"], None)
        if t == "welcome":
            self.welcome = d
        elif t in ("scene.joined", "scene.snapshot"):
            assert st is not None and s is not None
            if s < self.cursors.get(st, 0):
                return  # an old answer, sent again: what came since counts
            if "gap" in d:
                assert d["gap"] == {"from": self.cursors[st] + 1, "to": s}
            self.cursors[st] = s
            self.texts = {turn["turn"]: (turn["text"], turn["n"]) for turn in d["turns"]}
        elif t == "scene.synced":
            assert st is not None
            assert s == self.cursors.get(st, 0)
        elif s is not None:
            assert st is not None
            assert s == self.cursors.get(st, 0) + 1, "no gap, no double"
            self.cursors[st] = s
            self.events[st, s] = message
        if t == "npc.turn.start":
            self.texts[d["turn"]] = ("", 0)
        elif t in ("npc.delta", "npc.turn.sync"):
            assert d["turn"] not in self.ended
            text, n = self.texts.get(d["turn"], ("", 0))
            assert d["i"] == n or (t == "npc.turn.sync" and d["i"] == 0)
            self.texts[d["turn"]] = (text * (d["i"] > 0) + d["text"], d["i"] + d["n"])
        elif t == "npc.turn.end":
            assert d["turn"] not in self.ended
            self.ended[d["turn"]] = d["text"]
            text, n = self.texts.pop(d["turn"], ("", 0))
            complete = text == d["text"] or n == 0
            assert complete or self.forgiving, "what was begun is heard to its end"
