"""A game client for tests: a real WebSocket, and what a client keeps of the conversation."""

import asyncio
import json
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from gameserver.game import GameServer
from tests.gameserver.stage import SCENE

Message = dict[str, Any]


class Player:
    """Sends commands with rising ids and keeps everything that was received.

    Attributes:
        patience: seconds to wait for a message before the test has failed.
    """

    patience = 20.0

    def __init__(self, socket: ClientConnection, name: str) -> None:
        self.socket = socket
        self.name = name
        self.stream: str | None = None
        self.log: list[Message] = []
        self._read = 0
        self._last_id = 0

    @classmethod
    async def dial(
        cls, server: GameServer, name: str = "ann", *, suffix: str = "", **options: Any
    ) -> Self:
        """Connect, without a word; `suffix` comes after the path."""
        options.setdefault("subprotocols", ["npc.v1.json"])
        url = f"ws://127.0.0.1:{server.port}/v1/ws{suffix}"
        socket = await connect(url, ping_interval=None, **options)
        return cls(socket, name)

    @classmethod
    async def enter(
        cls, server: GameServer, name: str = "ann", *, scene: str = SCENE, **wish: Any
    ) -> Self:
        """Connect, identify, and join a scene."""
        player = await cls.dial(server, name)
        await player.identify()
        player.stream = (await player.ask("scene.join", {"scene": scene, **wish})).get("st")
        return player

    async def identify(self, **wish: Any) -> Message:
        """Say who this is; returns `welcome`."""
        await self.send("identify", {"player": self.name, "auth": {"kind": "none"}, **wish})
        return await self.get("welcome")

    async def send(
        self, t: str, d: Message | None = None, *, st: str | None = None, id: int | None = None
    ) -> None:
        """Send a message as it is."""
        message: Message = {"t": t, "d": d or {}}
        if st is not None:
            message["st"] = st
        if id is not None:
            message["id"] = id
        await self.socket.send(json.dumps(message))

    async def ask(
        self, t: str, d: Message | None = None, *, st: str | None = None, id: int | None = None
    ) -> Message:
        """Send a command, about the scene that was entered, and return its answer."""
        self._last_id = id if id is not None else self._last_id + 1
        await self.send(t, d, st=st or self.stream, id=self._last_id)
        wanted = self._last_id
        while True:
            message = await self.receive()
            if message.get("re") == wanted:
                return message

    async def say(self, text: str = "Hello?", **more: Any) -> Message:
        """A line to Mira, unless somebody else is named."""
        return await self.ask("say", {"npc": "mira", "text": text, **more})

    async def hear(self, text: str = "Hello?", **more: Any) -> Message:
        """Say a line and wait for its answer. Returns the payload of the answer's end."""
        accepted = await self.say(text, **more)
        assert accepted["t"] == "say.accepted", accepted
        start = await self.get("npc.turn.start", cause=[accepted["d"]["msg"]])
        end: Message = (await self.get("npc.turn.end", turn=start["d"]["turn"]))["d"]
        return end

    async def flood(self, kilobytes: int) -> None:
        """Raise events that fill the sockets of those who do not read."""
        for _ in range(kilobytes // 4):
            await self.ask("world.event", {"name": "thunder", "data": "x" * 4000})

    async def receive(self, seconds: float | None = None) -> Message:
        """The next message, whatever it is."""
        async with asyncio.timeout(self.patience if seconds is None else seconds):
            raw = await self.socket.recv()
        assert isinstance(raw, str)
        message: Message = json.loads(raw)
        self.log.append(message)
        return message

    async def get(self, t: str, **fields: Any) -> Message:
        """The next message of a type whose payload has these fields, from those already received
        and not yet asked for, or to come."""
        while True:
            while self._read < len(self.log):
                message = self.log[self._read]
                self._read += 1
                if message["t"] == t and fields.items() <= message["d"].items():
                    return message
            await self.receive()

    async def closed(self, seconds: float = 20.0) -> int | None:
        """Read to the end; returns the close code."""
        async with asyncio.timeout(seconds):
            try:
                while True:
                    self.log.append(json.loads(await self.socket.recv()))
            except ConnectionClosed:
                return self.socket.close_code

    async def quiet(self, seconds: float = 0.1) -> None:
        """Read whatever comes for a moment."""
        try:
            while True:
                await self.receive(seconds)
        except TimeoutError:
            pass

    def types(self) -> list[str]:
        """Types of all messages so far."""
        return [message["t"] for message in self.log]

    def heard(self, turn: str) -> str:
        """The text of a turn as deltas, syncs and snapshots gave it, without a hole."""
        text, n = "", 0
        for message in self.log:
            pieces = message["d"].get("turns", [])  # of a snapshot
            if message["t"] in ("npc.delta", "npc.turn.sync"):
                pieces = [message["d"]]
            for piece in pieces:
                if piece["turn"] == turn:
                    assert piece["i"] == n or (piece["i"] == 0 and message["t"] != "npc.delta")
                    text = text + piece["text"] if piece["i"] else piece["text"]
                    n = piece["i"] + piece["n"]
        return text


async def guess(server: GameServer, name: str, wishes: list[Message], *, most: int) -> None:
    """Somebody tries to go on with sessions that are not theirs: `most` times they are given one of
    their own, after that they are told to stop.
    """
    for attempt, wish in enumerate(wishes):
        player = await Player.dial(server, name)
        await player.send("identify", {"player": name, "resume": wish})
        if attempt < most:
            assert (await player.get("welcome"))["d"]["resumed"] is False
            await player.socket.close()
        else:
            assert (await player.get("error"))["d"]["code"] == "rate_limited"
            assert await player.closed() == 4429
