"""Two nodes on a Redis, one broker: what a node could not tell, one other does; what comes to the
wrong one is passed on."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from engine.api import AsyncEngine
from gameserver.game import GameServer
from gameserver.mqtt.heir import Heir
from gameserver.protocol import Refusal
from gameserver.stores.store import StoreDown
from npc.cast import Cast
from tests.gameserver.mqtt.mosquitto import PROGRAM as MOSQUITTO
from tests.gameserver.mqtt.mosquitto import Mosquitto
from tests.gameserver.mqtt.outsider import Outsider, outsider
from tests.gameserver.mqtt.test_acknowledged import BELL, told
from tests.gameserver.mqtt.test_trouble import SAID, texts
from tests.gameserver.mqtt.test_world_events import bridged, count, subscribed, up
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, byte_model, settings_with, until, write_pack
from tests.gameserver.stores.conftest import redis_server, redis_store
from tests.gameserver.stores.redis_server import PROGRAM as REDIS
from tests.gameserver.stores.redis_server import RedisServer

__all__ = ["redis_server"]

pytestmark = pytest.mark.skipif(
    REDIS is None or MOSQUITTO is None, reason="redis-server or mosquitto is not installed"
)
REPLIES = ["The bridge is gone.", "The stew is hot.", "Mind the cat."]
LEASE_S = 1.5


class Node:
    """A node in this process, which can vanish as `kill -9` would have it."""

    def __init__(self, folder: Path, redis: RedisServer, name: str, broker: Mosquitto) -> None:
        self._folder, self._redis, self._name = folder, redis, name
        self._lives = 0
        self._settings = settings_with(
            node=name,
            mqtt=bridged(broker),
            store={"lease_s": LEASE_S},
            nodes={"placement": "arrival"},
        )
        self.store: Any = None
        self.server: GameServer

    async def start(self) -> GameServer:
        self._lives += 1
        prefix, life = self._folder.name, f"{self._name}-{self._lives}"
        self.store = redis_store(self._redis, prefix, self._name, life, LEASE_S)
        await self.store.open()
        self._engine = AsyncEngine(byte_model(REPLIES), self._settings.engine)
        await self._engine.start()
        self._cast = Cast(self._engine, self._settings.replies)
        await self._cast.open(write_pack(self._folder / f"pack-{life}"))
        self.server = GameServer(self._cast, self._settings, store=self.store)
        await self.server.start()
        return self.server

    async def crash(self) -> None:
        """Nothing more reaches Redis, the broker or a client."""
        server, bridge = self.server, self.server._bridge
        assert bridge is not None and server._server is not None
        leases = server._world.leases
        assert leases is not None and leases._task is not None
        server._heir.stop()
        tasks = [*bridge._tasks, *server._caring, leases._task, server._journal._task]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        server._server.close(close_connections=False)
        for socket in list(server._server.all_connections):
            socket.transport.abort()
        await self._engine.stop()
        await self.store.close()
        self.store = None

    async def stop(self) -> None:
        if self.store is not None:
            await self.server.close()
            await self._cast.close()
            await self._engine.stop()
            await self.store.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that forgets nothing."""
    server = Mosquitto(tmp_path, persistent=True).start()
    yield server
    server.end()


@pytest.fixture
async def nodes(
    tmp_path: Path,
    redis_server: RedisServer,
    broker: Mosquitto,
) -> AsyncIterator[tuple[Node, Node]]:
    one, two = (Node(tmp_path, redis_server, name, broker) for name in ("one", "two"))
    async with AsyncExitStack() as ends:
        for node in (one, two):
            await node.start()
            ends.push_async_callback(node.stop)
        yield one, two


def eids(game: Outsider) -> list[str]:
    """The ids under which words arrived, in order."""
    heard = [m for m in game.heard if str(m.topic).endswith(SAID)]
    return [dict(m.properties.UserProperty)["eid"] for m in heard]  # type: ignore[union-attr]


async def outbox(node: Node) -> list[str]:
    return [key for key in await node.store.keys(f"scene.{SCENE}") if key.startswith("out/")]


async def test_what_a_dead_node_could_not_tell_another_does_though_nobody_comes(
    nodes: tuple[Node, Node], broker: Mosquitto
) -> None:
    one, two = nodes
    async with outsider(broker, session="game"):
        pass  # subscribed from now on
    ann = await Player.enter(one.server)
    await until(lambda: up(one.server) and up(two.server))
    broker.end(signal.SIGTERM)
    await until(lambda: not up(one.server) and not up(two.server))
    for line in ("One?", "Two?", "Three?"):
        await ann.hear(line)
    await one.server._journal.settled()
    assert len(await outbox(two)) == 3
    await one.crash()
    broker.start()
    async with outsider(broker, session="game") as game:
        await until(lambda: len(texts(game)) == 3)
        assert texts(game) == REPLIES
        assert SCENE in two.server._world.actors
        assert len(set(eids(game))) == 3
        await two.server._journal.settled()
        async with asyncio.timeout(20):
            while await outbox(two):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await one.start()
        assert len(set(eids(game))) == 3


async def test_a_node_that_was_asleep_sends_nothing_of_a_scene_that_it_has_lost(
    nodes: tuple[Node, Node], broker: Mosquitto
) -> None:
    """Not what the next owner tells, and not what was never kept."""
    one, two = nodes
    ann = await Player.enter(one.server)
    await subscribed(one.server)
    broker.end(signal.SIGTERM)
    await until(lambda: not up(one.server))
    await ann.hear("One?")
    await one.server._journal.settled()
    leases = one.server._world.leases
    assert leases is not None and leases._task is not None
    leases._task.cancel()  # it does not renew, and thinks that it may speak for ever
    one.server._journal.renewed(float("inf"))
    await until(lambda: len(one.server._bridge._outgoing) == 1)  # type: ignore[union-attr]
    async with asyncio.timeout(20):
        while await two.server._world.reopen(SCENE):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    actor = one.server._world.actors[SCENE]
    actor.happenings.happen("bell", "too late")
    await until(lambda: SCENE not in one.server._world.actors)
    assert len(one.server._bridge._outgoing) == 0  # type: ignore[union-attr]
    assert len(await outbox(two)) == 1
    broker.start()
    async with outsider(broker) as game:
        await until(lambda: not two.server.gauges()["mqtt_waiting_out"])
        await game.tell(BELL, "now")
        await until(lambda: told(two.server)[-1:] == ["now"])
        assert "too late" not in told(two.server)


async def test_what_comes_to_the_wrong_node_is_passed_on_and_counts_once(
    nodes: tuple[Node, Node], broker: Mosquitto
) -> None:
    """Events that a dead node's session had queued, while another took its scene."""
    one, two = nodes
    await Player.enter(one.server)
    await subscribed(one.server)
    await one.crash()
    async with outsider(broker) as game:
        await game.tell(BELL, "meanwhile", eid="e1")  # only the dead one has asked for it
        async with asyncio.timeout(20):
            while await two.server._world.reopen(SCENE):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await subscribed(two.server)
        await game.tell(BELL, "then", eid="e2")
        await until(lambda: told(two.server) == ["then"])
        await one.start()
        await until(lambda: told(two.server) == ["then", "meanwhile"])
        await until(lambda: count(one.server, "mqtt_passed_on") >= 1)
        await until(lambda: not one.server.gauges()["mqtt_unacknowledged"])
        bridge = one.server._bridge
        assert bridge is not None
        await until(lambda: not bridge._unasked and SCENE not in bridge._subscribed)
        came = count(one.server, "mqtt_in")
        for _ in range(3):  # without an id nothing would tell a second delivery
            await game.tell(BELL, "last")
        await until(lambda: told(two.server)[-3:] == ["last"] * 3)
        assert told(two.server) == ["then", "meanwhile", *["last"] * 3]
        assert count(one.server, "mqtt_in") == came, "it has asked for no more of them"


async def test_an_heir_looks_twice_for_each_node_that_goes_and_survives_trouble() -> None:
    looks = 0
    trouble: list[Exception] = [StoreDown("away"), Refusal("busy", "full")]  # type: ignore[arg-type]

    async def inherit() -> None:
        nonlocal looks
        looks += 1
        if trouble:
            raise trouble.pop()

    heir = Heir(inherit, 0.01)
    heir.see(["one"])
    heir.see(["one", "two"])
    await asyncio.sleep(0)
    assert looks == 0, "who comes leaves nothing"
    heir.see(["one"])
    await until(lambda: looks == 2)
    heir.see(["one"])
    heir.see([])
    await until(lambda: looks == 4)
    heir.stop()
