"""The node that takes a scene over knows how things were; its stamps go on above the old ones."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.gameserver import stage
from tests.gameserver.cluster import running_cluster
from tests.gameserver.conftest import redis  # noqa: F401
from tests.gameserver.stage import SCENE
from tests.gameserver.state.walker import CAPS, THINGS, Walker
from tests.gameserver.stores.redis_server import PROGRAM, RedisServer

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed"),
    pytest.mark.timeout(300),
]


async def walker_at(server: object, name: str) -> Walker | None:
    """A player in the scene at a node; None if that one cannot have it yet."""
    walker = await Walker.dial(server, name)  # type: ignore[arg-type]
    walker.begin()
    await walker.identify(caps=CAPS)
    answer = await walker.ask("scene.join", {"scene": SCENE})
    if answer["t"] != "scene.joined":
        await walker.socket.close()
        return None
    walker.stream = SCENE
    await walker.until(lambda: bool(walker.deltas))
    return walker


async def test_a_node_that_takes_over_goes_on_with_the_state(
    tmp_path: Path,
    redis: RedisServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in THINGS.items():
        monkeypatch.setitem(stage.PACK, name, value)
    async with running_cluster(tmp_path, redis, nodes={"placement": "arrival"}) as cluster:
        ann = await walker_at(cluster.nodes["one"], "ann")
        assert ann is not None
        await ann.walk(3, 4)
        await ann.knows("ann", "pos", [3, 4])
        await ann.put("door", "open", True)  # what is kept with it: where everybody is
        await ann.knows("door", "open", True)
        stamps = [item["h"] for delta in ann.deltas for item in delta["d"]["items"]]
        cluster.nodes["one"].signal(signal.SIGKILL)
        bob = None
        async with asyncio.timeout(60):
            while bob is None:
                bob = await walker_at(cluster.nodes["two"], "bob")
                await asyncio.sleep(0.1)
        assert bob.state == ann.state
        assert bob.ep > ann.ep
        await bob.put("door", "open", False)
        await bob.knows("door", "open", False)
        (item,) = [i for i in bob.deltas[-1]["d"]["items"] if i["e"] == "door"]
        assert item["h"] > max(stamps)
        assert item["o"] == "two"
