"""A player who walks and touches things, and what its client knows of the state of a scene."""

from typing import Any, Self

from gameserver.game import GameServer
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import SCENE

#: What a scene has in these tests.
THINGS: dict[str, Any] = {
    "bounds": [[0, 0], [100, 100]],
    "players": {"keys": ["pose"]},
    "entities": [
        {
            "id": "door",
            "at": [1, 7],
            "keys": {"open": False, "lock": "iron"},
            "write": {"open": "player"},
            "told": [{"with": {"open": True}, "text": "The door stands open."}],
        },
        {
            "id": "lantern",
            "keys": {"lit": True, "owner": None},
            "write": {"lit": "owner", "owner": "player"},
        },
    ],
}
CAPS = ["world.state"]


class Walker(Player):
    """Applies each `state.delta` as docs/world-state.md says.

    Attributes:
        state: values by entity and key.
        rev, ep: of the latest delta.
        deltas: all of them.
    """

    @classmethod
    async def enter(
        cls, server: GameServer, name: str = "ann", *, scene: str = SCENE, **wish: Any
    ) -> Self:
        """Connect, identify with the capability, join, and get the state."""
        walker = await cls.dial(server, name)
        walker.begin()
        await walker.identify(caps=CAPS)
        walker.stream = (await walker.ask("scene.join", {"scene": scene, **wish})).get("st")
        await walker.until(lambda: bool(walker.deltas))
        return walker

    def begin(self) -> None:
        """Know nothing."""
        self.state: dict[tuple[str, str], Any] = {}
        self.deltas: list[Message] = []
        self.rev = self.ep = 0

    async def receive(self, seconds: float | None = None) -> Message:
        """The next message; a delta is taken in."""
        message = await super().receive(seconds)
        if message["t"] == "state.delta":
            self.take(message)
        return message

    def take(self, message: Message) -> None:
        """Take a delta in."""
        body = message["d"]
        self.deltas.append(message)
        if body.get("full"):
            self.state.clear()
            self.rev = 0
        assert body["rev"] >= self.rev
        self.rev, self.ep = body["rev"], message["ep"]
        for item in body["items"]:
            if item["v"] is None:
                self.state.pop((item["e"], item["k"]), None)
            else:
                self.state[item["e"], item["k"]] = item["v"]

    async def until(self, condition: Any) -> None:
        """Read until something holds."""
        while not condition():
            await self.receive()

    async def knows(self, e: str, k: str, v: Any) -> None:
        """Read until a key has a value; None: none."""
        await self.until(lambda: self.state.get((e, k)) == v)

    async def put(self, e: str, k: str, v: Any) -> Message:
        """Set a key; returns the answer."""
        return await self.ask("state.set", {"items": [{"e": e, "k": k, "v": v}]})

    async def walk(self, *to: float) -> None:
        """Move, and wait for no answer."""
        items = [{"e": self.name, "k": "pos", "v": list(to)}]
        await self.send("state.set", {"items": items}, st=self.stream)
