"""A player who is to be forgotten on nodes that share a Redis: in scenes that run at the node that
is asked, in those at rest, and not behind the back of another node."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from engine.api import AsyncEngine
from gameserver.forgetting import SCENES
from gameserver.game import GameServer
from npc.cast import Cast
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, byte_model, settings_with, write_pack
from tests.gameserver.stores.conftest import redis_store
from tests.gameserver.stores.redis_server import RedisServer

SECRET, OPEN = "xyzzy", "plugh"


class Nodes:
    """Nodes in this process, on one Redis, started and stopped one by one."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self._folder, self._redis, self._ends = folder, redis, dict[str, AsyncExitStack]()
        self.stores: dict[str, Any] = {}

    async def start(self, name: str) -> GameServer:
        settings = settings_with(node=name, nodes={"placement": "arrival"})
        store = redis_store(self._redis, self._folder.name, name, f"{name}-life")
        engine = AsyncEngine(byte_model(["Well."]), settings.engine)
        cast = Cast(engine, settings.replies)
        ends = self._ends[name] = AsyncExitStack()
        await store.open()
        ends.push_async_callback(store.close)
        await engine.start()
        ends.push_async_callback(engine.stop)
        await cast.open(write_pack(self._folder / f"pack-{name}", context=["brave"]))
        ends.push_async_callback(cast.close)
        server = GameServer(cast, settings, store=store)
        await server.start()
        ends.push_async_callback(server.close)
        self.stores[name] = store
        return server

    async def stop(self, name: str) -> None:
        """In good order: what it had stays in Redis."""
        await self._ends.pop(name).aclose()

    async def end(self) -> None:
        for name in list(self._ends):
            await self.stop(name)

    async def holds(self, word: str, prefix: str) -> bool:
        """Whether any value in Redis of buckets that begin so has a word, whatever holds it."""
        client = next(iter(self.stores[name] for name in self._ends))._redis
        found = False
        async for key in client.scan_iter(match="*"):
            if f":{prefix}".encode() not in key:
                continue
            kind = await client.type(key)
            parts: list[Any]
            match kind:
                case b"hash":
                    parts = [each for pair in (await client.hgetall(key)).items() for each in pair]
                case b"zset":
                    parts = await client.zrange(key, 0, -1)
                case b"list":
                    parts = await client.lrange(key, 0, -1)
                case b"set":
                    parts = list(await client.smembers(key))
                case b"stream":
                    parts = [str(await client.xrange(key)).encode()]
                case _:
                    parts = [await client.get(key)]
            found |= any(word.encode() in part for part in parts if part is not None)
        return found


@pytest.fixture
async def nodes(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Nodes]:
    redis_server.command("FLUSHALL")
    made = Nodes(tmp_path, redis_server)
    yield made
    await made.end()


async def talk(server: GameServer, stream: str) -> None:
    """Ann tells a secret in every way there is; Bob says something, too."""
    instance = stream.removeprefix(SCENE)[1:]
    wish = {"instance": instance} if instance else {}
    ann, bob = [await Player.enter(server, name, **wish) for name in ("ann", "bob")]
    await ann.hear(f"{SECRET} aloud")
    await ann.hear(f"{SECRET} whispered", to=["mira"])
    await ann.ask("observe", {"text": f"{SECRET} seen", "who": "ann"})
    await ann.ask("context.set", {"items": [{"k": "brave", "v": f"{SECRET} wish"}]})
    await bob.hear(f"{OPEN} it is", npc="harn")
    await server._journal.settled()


async def test_what_was_kept_of_scenes_at_rest_is_forgotten_at_any_node(nodes: Nodes) -> None:
    one = await nodes.start("one")
    for stream in (SCENE, f"{SCENE}.b"):
        await talk(one, stream)
    await nodes.stop("one")
    two = await nodes.start("two")
    for word in (SECRET, OPEN):
        assert await nodes.holds(word, SCENES)
    two.forget("ann")
    await two.forget_at_rest("ann")
    await two._journal.settled()
    assert not await nodes.holds(SECRET, SCENES)
    assert await nodes.holds(OPEN, SCENES), "the others are remembered"
    eve = await Player.enter(two, "eve")
    read = await eve.ask("history.get", {"npc": "harn"})
    assert OPEN in str(read)


async def test_a_scene_that_another_node_has_is_forgotten_there(nodes: Nodes) -> None:
    one, two = await nodes.start("one"), await nodes.start("two")
    await talk(one, SCENE)
    two.forget("ann")
    await two.forget_at_rest("ann")
    assert await nodes.holds(SECRET, SCENES), "its owner is the only one that writes there"
    assert SCENE in one._world.actors
    one.forget("ann")
    await one.forget_at_rest("ann")
    await one._journal.settled()
    await nodes.stop("one")  # what lay in its window for clients that lag is dropped when at rest
    two.forget("ann")
    await two.forget_at_rest("ann")
    await two._journal.settled()
    assert not await nodes.holds(SECRET, SCENES)
    assert await nodes.holds(OPEN, SCENES)


async def test_one_npc_may_forget_alone(nodes: Nodes) -> None:
    one = await nodes.start("one")
    ann = await Player.enter(one, "ann")
    await ann.hear(f"{SECRET} it is", npc="mira", to=["mira"])
    await ann.hear(f"{OPEN} it is", npc="harn", to=["harn"])
    await one._journal.settled()
    await nodes.stop("one")
    two = await nodes.start("two")
    two.forget("ann", "mira")
    await two.forget_at_rest("ann", "mira")
    await two._journal.settled()
    assert not await nodes.holds(SECRET, SCENES)
    assert await nodes.holds(OPEN, SCENES)
