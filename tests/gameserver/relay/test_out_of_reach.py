"""A node that has a scene, and to which the node in between has no way: whoever wants that scene is
told so after a while, and nobody goes round in circles meanwhile.

Real nodes in processes of their own, on a real Redis.
"""

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest

from tests.gameserver.cluster import LEASE_S, REPLY, Cluster, running_cluster
from tests.gameserver.stage import SCENE
from tests.gameserver.stores.redis_server import RedisServer

pytestmark = pytest.mark.timeout(120)


async def gauges(cluster: Cluster, node: str) -> dict[str, float]:
    url = f"http://127.0.0.1:{cluster.nodes[node].console}/debug/gauges"

    def ask() -> bytes:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: bytes = answer.read()
            return found

    read: dict[str, float] = json.loads(await asyncio.to_thread(ask))
    return read


async def test_a_scene_out_of_reach_is_busy_after_a_few_tries_and_life_goes_on(
    tmp_path: Path, redis: RedisServer
) -> None:
    nodes = {"relay": True, "placement": "arrival"}
    async with running_cluster(tmp_path, redis, hidden="one", nodes=nodes) as cluster:
        await cluster.player("one", "ann")
        bob = await cluster.player("two", "bob", join=False)
        bob.patience = 20 * LEASE_S
        refused = await bob.ask("scene.join", {"scene": SCENE})
        assert (refused["t"], refused["d"]["code"]) == ("error", "busy"), refused
        assert refused["d"]["fatal"] is False
        assert refused["d"]["retry_ms"] > 0
        turns = (await gauges(cluster, "two"))["relay_turns"]
        assert turns <= 4 * 2 * LEASE_S + 8, "a few a second, and fewer and fewer"
        # Its session is well, and may go elsewhere.
        assert (await bob.ask("heartbeat", {"n": 3}))["d"]["n"] == 3
        wish = {"scene": SCENE, "instance": "b"}
        assert (await bob.ask("scene.join", wish))["t"] == "scene.joined"
        await bob.ask("scene.leave", {}, st=f"{SCENE}.b")
        # And once the node that was out of reach is gone, it is let in.
        cluster.nodes["one"].kill()
        joined = await bob.ask("scene.join", {"scene": SCENE})
        while joined["d"].get("code") == "busy":  # on a slow machine, some tries later
            joined = await bob.ask("scene.join", {"scene": SCENE})
        assert joined["t"] == "scene.joined", joined
        bob.stream = joined["st"]
        assert (await bob.hear())["text"] == REPLY
