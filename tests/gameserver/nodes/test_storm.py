"""A node dies and all of its players come back at once: everybody gets in again, no scene is
claimed twice, and those who let them in keep to their limits."""

import asyncio
import contextlib
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.gameserver.cluster import running_cluster
from tests.gameserver.stores.redis_server import RedisServer
from tests.gameserver.storm import Refugee, storm

CLIENTS = 150
ROOMS = 20
RATE, BURST, HANDSHAKES = 40.0, 5, 16


def gauges(node: Any) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.console}/debug/gauges") as answer:
        return json.load(answer)  # type: ignore[no-any-return]


async def watch(nodes: list[Any]) -> float:
    """Most handshakes in flight at any of these nodes that were seen until it is cancelled."""
    peak = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            for node in nodes:
                peak = max(peak, (await asyncio.to_thread(gauges, node))["handshakes"])
            await asyncio.sleep(0.02)
    return peak


@pytest.mark.timeout(200)
@pytest.mark.parametrize("relay", [False, True])
async def test_everybody_comes_back_once(tmp_path: Path, redis: RedisServer, relay: bool) -> None:
    guards = {"handshakes": HANDSHAKES, "identifies_per_s": RATE, "identifies_burst": BURST}
    nodes = {"relay": relay, "idle_players": 1}  # a scene each, and they are spread
    async with running_cluster(tmp_path, redis, guards=guards, nodes=nodes) as cluster:
        up = list(cluster.nodes.values())
        clients = [
            Refugee(f"c{i}", {"scene": "inn", "instance": f"r{i % ROOMS}"}) for i in range(CLIENTS)
        ]
        came = await storm(clients, up, cluster.at)
        assert len(came.epochs) == ROOMS
        assert all(len(epochs) == 1 for epochs in came.epochs.values()), "one claim a scene"
        owners = {cluster.owner(f"inn.r{room}") for room in range(ROOMS)}
        assert len(owners) > 1, "they are spread"
        before = {name: gauges(node) for name, node in cluster.nodes.items()}
        struck = max(up, key=lambda node: sum(client.home is node for client in clients))
        peaks = asyncio.create_task(watch([node for node in up if node is not struck]))
        began = time.monotonic()
        struck.kill()
        hit = [client for client in clients if client.home is struck]
        assert hit
        left = [node for node in up if node is not struck]
        back = await storm(hit, left, cluster.at)
        assert (back.resumed, back.anew) == (len(hit), 0), back
        assert {client.home for client in hit} <= set(left)
        assert all(len(epochs) == 1 for epochs in back.epochs.values()), "one claim a scene"
        if relay:
            assert back.sent_on == 0
        for name, node in cluster.nodes.items():
            if node is not struck:
                resumed = gauges(node).get("sessions_resumed", 0)
                resumed -= before[name].get("sessions_resumed", 0)
                assert resumed <= BURST + RATE * (time.monotonic() - began)
        peaks.cancel()
        assert await peaks <= HANDSHAKES
        for client in clients:
            client.drop()
