"""A carried client that does not read: the node in between lets go of it, and of what it holds for
it, and the owner of the scene keeps its seat."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.gameserver.cluster import running_cluster
from tests.gameserver.player import Player
from tests.gameserver.raw import TEXT, RawClient, frame, narrow
from tests.gameserver.relay.test_out_of_reach import gauges
from tests.gameserver.stage import SCENE
from tests.gameserver.stores.redis_server import RedisServer
from tests.gameserver.test_crashes import FREE

pytestmark = pytest.mark.timeout(120)


async def test_who_is_carried_and_does_not_read_is_let_go_of_and_may_come_back(
    tmp_path: Path, redis: RedisServer
) -> None:
    nodes = {"relay": True, "placement": "arrival"}
    guards = {"stall_s": 0.5, "write_bytes": 4096, "send_buffer_bytes": 4096}
    limits = {**FREE["limits"], "messages_burst": 5000, "bytes_per_s": 1e8, "bytes_burst": 10**8}
    async with running_cluster(
        tmp_path, redis, nodes=nodes, guards=guards, limits=limits
    ) as cluster:
        ann = await cluster.player("one", "ann")
        two = cluster.nodes["two"]
        client = await RawClient.upgraded(two, narrow(two))  # type: ignore[arg-type]
        identify = {"t": "identify", "d": {"player": "bob", "auth": {"kind": "none"}}}
        join = {"t": "scene.join", "id": 1, "d": {"scene": SCENE}}
        for message in (identify, join):
            client.writer.write(frame(TEXT, json.dumps(message).encode()))
        welcome = b""
        while b'"welcome"' not in welcome:
            _, welcome = await client.frame()
        await ann.get("presence")
        assert (await gauges(cluster, "two"))["relayed"] == 1
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await ann.flood(2000)
        away = await ann.get("presence")
        while away["d"]["changes"][0]["what"] != "away":
            away = await ann.get("presence")
        async with asyncio.timeout(20):
            while (found := await gauges(cluster, "two"))["connections"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (found["relayed"], found["closes_4441"]) == (0, 1)
        assert (await gauges(cluster, "one"))["connections"] == 1
        told = json.loads(welcome)["d"]
        again = await Player.dial(cluster.nodes["three"], "bob")  # type: ignore[arg-type]
        resume = {"session": told["session"], "token": told["resume_token"]}
        assert (await again.identify(resume=resume))["d"]["resumed"] is True
        assert (await again.get("scene.snapshot"))["st"] == SCENE
        client.drop()
