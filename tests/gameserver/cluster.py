"""Three nodes in processes of their own, on a real Redis."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.gameserver.player import Message, Player
from tests.gameserver.process import Process
from tests.gameserver.proxy import Proxy
from tests.gameserver.stage import SCENE, write_pack
from tests.gameserver.stores.redis_server import RedisServer
from tests.gameserver.test_crashes import FREE

REPLY = "The bridge is gone. Nobody leaves tonight, and nobody comes."
LEASE_S = 1.5


class Cluster:
    """A Redis, and nodes that share it.

    Attributes:
        nodes: by name.
    """

    def __init__(self, folder: Path, redis: RedisServer, line: Proxy, **settings: Any) -> None:
        """`line` is how the first node reaches Redis; `settings` are those of all nodes."""
        pack = write_pack(folder / "pack")
        self.redis = redis
        self.line = line
        self.nodes: dict[str, Process] = {}
        shared = {**FREE, "nodes": {}, **settings}
        for name in ("one", "two", "three"):
            port = free_port()
            nodes = {**shared["nodes"], "address": f"ws://127.0.0.1:{port}"}
            process = Process(
                folder,
                [REPLY],
                2.0,
                node=name,
                url=f"ws://{name}.example",
                scenes=[str(pack)],
                redis=f"redis://127.0.0.1:{line.port if name == 'one' else redis.port}/0",
                store={"lease_s": LEASE_S, "checkpoint_ms": 20},
                **{**shared, "nodes": nodes},
            )
            process.port = port
            self.nodes[name] = process

    def owner(self, stream: str = SCENE) -> str:
        """The node that has a scene, as Redis knows it; "" if none has."""
        answer = self.redis.command("HGET", f"troupe:o:scene.{stream}", "node")
        return "" if answer.startswith(b"$-1") else answer.split(b"\r\n")[1].decode()

    def at(self, url: str) -> Process:
        """The node with a public address."""
        return self.nodes[url.removeprefix("ws://").removesuffix(".example")]

    async def start(self) -> None:
        for node in self.nodes.values():
            node.spawn()
        await asyncio.gather(*(node.ready() for node in self.nodes.values()))

    async def player(self, node: str, name: str, *, join: bool = True) -> Player:
        player = await Player.dial(self.nodes[node], name)  # type: ignore[arg-type]
        await player.identify()
        if join:
            player.stream = (await player.ask("scene.join", {"scene": SCENE})).get("st")
        return player

    async def join(
        self, node: str, name: str, instance: str | None = None
    ) -> tuple[Player, list[Message]]:
        """A player who comes to a node, wants a scene, and goes where it is sent, until it is in.
        Returns it, and what it was sent on with."""
        moves: list[Message] = []
        wish = {"scene": SCENE} if instance is None else {"scene": SCENE, "instance": instance}
        at = self.nodes[node]
        while True:
            player = await Player.dial(at, name)  # type: ignore[arg-type]
            await player.identify()
            answer = await player.ask("scene.join", wish)
            if answer["t"] != "scene.moved":
                assert answer["t"] == "scene.joined", answer
                player.stream = answer["st"]
                return player, moves
            moves.append(answer["d"])
            await player.socket.close()
            at = self.at(answer["d"]["url"])


def free_port() -> int:
    """A port that nobody listens on just now: nodes tell each other theirs before they do."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextlib.asynccontextmanager
async def running_cluster(
    folder: Path, redis: RedisServer, *, hidden: str = "", **settings: Any
) -> AsyncIterator[Cluster]:
    """Three nodes from start to end, and nothing in Redis before; the others have no way to the one
    that is `hidden`."""
    redis.command("FLUSHALL")
    line = await Proxy(redis.port).start()
    made = Cluster(folder, redis, line, **settings)
    if hidden:
        made.nodes[hidden].change(nodes={**settings["nodes"], "address": "ws://127.0.0.1:9"})
    await made.start()
    try:
        yield made
    finally:
        for node in made.nodes.values():
            with contextlib.suppress(Exception):
                node.signal(signal.SIGCONT)
            node.kill()
        await line.stop()
