"""Sessions and scenes that go from node to node all day leave nothing behind: neither in the nodes,
nor in the Redis that they share."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gameserver.game import GameServer
from gameserver.stores.redis import RedisStore
from tests.gameserver.containers import settled
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import SCENE, serving, until
from tests.gameserver.stores.redis_server import RedisServer

_ROUND = 25
#: An epoch that no clock has reached.
_LATER = "9000000000000"
#: Logs in the store are trimmed in large steps.
_FLOW = {"resume_s": 2.0, "window_events": 8, "answers": 4, "scene_idle_s": 0.1, "orphan_s": 0.01}


@contextlib.asynccontextmanager
async def node(
    folder: Path, redis: RedisServer, name: str, **settings: Any
) -> AsyncIterator[GameServer]:
    """A node in this process, whose leases do not end meanwhile."""
    url = f"redis://127.0.0.1:{redis.port}/0"
    store = RedisStore(url, name, f"{name}-1", f"ws://{name}.example", "troupe", 60.0)
    await store.open()
    (folder / name).mkdir()
    try:
        async with serving(
            folder / name,
            ["No."],
            step_ms=0.0,
            kept_in=store,
            flow=_FLOW,
            store={"lease_s": 60.0},
            budgets={"accounts": 8},
            node=name,
            url=f"ws://{name}.example",
            nodes={"placement": "arrival"},
            **settings,
        ) as server:
            yield server
    finally:
        await store.close()


async def travel(redis: RedisServer, one: GameServer, two: GameServer, number: int) -> None:
    """Somebody goes from node to node, into a scene that another node takes away, and leaves."""
    wish: Message | None = None
    for server in (one, two, one, two):
        player = await Player.dial(server, f"p{number}")
        welcome = (await player.identify(**({"resume": wish} if wish else {})))["d"]
        assert welcome["resumed"] is (wish is not None)
        wish = {"session": welcome["session"], "token": welcome["resume_token"]}
    room = {"scene": SCENE, "instance": f"i{number}"}
    player.stream = (await player.ask("scene.join", room, id=10))["st"]
    await player.hear()
    redis.command("SET", f"troupe:e:scene.{player.stream}", _LATER, "KEEPTTL")
    redis.command("DEL", f"troupe:o:scene.{player.stream}")
    await player.send("say", {"npc": "mira", "text": "Well?"}, st=player.stream, id=20)
    assert await player.closed() == 4450
    back = await Player.dial(one, f"p{number}")
    assert (await back.identify(resume=wish))["d"]["resumed"] is True
    await back.send("bye")
    assert await back.closed() == 1000


def mortal(redis: RedisServer) -> Counter[str]:
    """Keys in Redis that never end, by kind."""
    answer = redis.command("KEYS", "troupe:*").split(b"\r\n")
    names = [line.decode() for line in answer if line.startswith(b"troupe:")]
    forever = [name for name in names if redis.command("PTTL", name).startswith(b":-1")]
    return Counter(name.split(".")[0] for name in forever)


@pytest.mark.timeout(200)
async def test_who_moves_from_node_to_node_leaves_nothing_behind(
    tmp_path: Path, redis: RedisServer
) -> None:
    redis.command("FLUSHALL")
    async with node(tmp_path, redis, "one") as one, node(tmp_path, redis, "two") as two:
        found, kept = [], []
        for number in range(4):
            for n in range(number * _ROUND, (number + 1) * _ROUND):
                await travel(redis, one, two, n)
            for server in (one, two):
                server._sessions._kept_at = 0.0  # as it does every now and then
                server._sessions.keep()
                await until(lambda s=server: s.gauges()["connections"] == 0)
                await until(lambda s=server: s.gauges()["scenes"] == 0)
                await until(lambda s=server: s.gauges()["sessions"] == 0)
            found.append(await settled(one, two))
            kept.append(mortal(redis))
        grown = {
            name: [counts[name] for counts in found]
            for name in found[-1]
            if found[-1][name] > found[1][name] + 12 and not name.startswith("BlockPool.")
        }  # the engine's cache is as large as its memory
        assert not grown, "\n".join(f"{name} {sizes}" for name, sizes in grown.items())
        assert kept[-1] == kept[0], (kept[0], kept[-1])
