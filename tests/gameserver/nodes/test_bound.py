"""A session enters a scene at one node while another node takes it over. Who comes first has it,
and those who are in the scene already notice nothing.

Two nodes in this process, on a real Redis, so that each moment can be chosen.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gameserver.nodes.test_much_moving import node
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import SCENE
from tests.gameserver.stores.redis_server import RedisServer

pytestmark = pytest.mark.timeout(60)


async def begun(server: Any) -> tuple[Player, Message]:
    """Eve, in no scene yet, and how she would go on."""
    eve = await Player.dial(server, "eve")
    welcome = (await eve.identify())["d"]
    return eve, {"session": welcome["session"], "token": welcome["resume_token"]}


async def resumed(server: Any, wish: Message) -> tuple[Player, Message]:
    """Another connection of hers; with it, the first answer that it gets."""
    again = await Player.dial(server, "eve")
    await again.send("identify", {"player": "eve", "auth": {"kind": "none"}, "resume": wish})
    await again.receive()  # hello
    return again, await again.receive()


@asynccontextmanager
async def stage(
    tmp_path: Path, redis: RedisServer
) -> AsyncIterator[tuple[Any, Any, Player, Player, Message]]:
    """Two nodes; at the first are Ann, in its scene, and Eve, in none yet."""
    redis.command("FLUSHALL")
    async with node(tmp_path, redis, "one") as one, node(tmp_path, redis, "two") as two:
        ann = await Player.enter(one)
        yield one, two, ann, *(await begun(one))


async def is_undisturbed(ann: Player) -> None:
    assert (await ann.hear("Still here?"))["status"] == "completed"
    assert not {"scene.moved", "scene.snapshot", "error"} & set(ann.types())


async def test_who_enters_first_stays_and_the_other_node_sends_on(
    tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node two has seen that she is in no scene, and is about to take her session."""
    async with stage(tmp_path, redis) as (_, two, ann, eve, wish):
        claim, joined = two._journal.store.claim, []

        async def late(bucket: str, **how: Any) -> Any:
            if bucket.startswith("session.") and not joined:
                joined.append(await eve.ask("scene.join", {"scene": SCENE}))
            return await claim(bucket, **how)

        monkeypatch.setattr(two._journal.store, "claim", late)
        _, told = await resumed(two, wish)
        assert [answer["t"] for answer in joined] == ["scene.joined"]
        assert (told["t"], told["d"].get("url")) == ("scene.moved", "ws://one.example")
        eve.stream = SCENE
        await is_undisturbed(eve)
        await is_undisturbed(ann)


async def test_who_has_lost_her_session_on_the_way_in_does_not_get_in(
    tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node two takes it while node one is looking for the scene."""
    async with stage(tmp_path, redis) as (one, two, ann, eve, wish):
        open_it, taken = one._world.open, []

        async def slow(*what: Any, **how: Any) -> Any:
            found = await open_it(*what, **how)
            if not taken:
                taken.append(await resumed(two, wish))
            return found

        monkeypatch.setattr(one._world, "open", slow)
        await eve.send("scene.join", {"scene": SCENE}, id=1)
        assert await eve.closed() in (4409, 4450)
        again, told = taken[0]
        assert (told["t"], told["d"]["resumed"]) == ("welcome", True)
        assert (await again.ask("heartbeat", {"n": 1}))["t"] == "heartbeat.ack"
        await is_undisturbed(ann)
        seen = [c["player"] for m in ann.log if m["t"] == "presence" for c in m["d"]["changes"]]
        assert "eve" not in seen


async def test_who_is_bound_and_then_not_let_in_is_free_again(
    tmp_path: Path, redis: RedisServer
) -> None:
    redis.command("FLUSHALL")
    limits = {"players_per_scene": 1}
    async with (
        node(tmp_path, redis, "one", limits=limits) as one,
        node(tmp_path, redis, "two") as two,
    ):
        await Player.enter(one)
        eve, wish = await begun(one)
        assert (await eve.ask("scene.join", {"scene": SCENE}))["d"]["code"] == "busy"
        again, told = await resumed(two, wish)
        assert (told["t"], told["d"].get("resumed")) == ("welcome", True)
        assert (await again.ask("heartbeat", {"n": 1}, id=9))["t"] == "heartbeat.ack"
