"""What nodes do when they want the same sessions at once, or learn late that something is not
theirs: nobody is told of what is not kept, and nobody loses their seat or their session."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gameserver.cluster import REPLY, Cluster, running_cluster
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE
from tests.gameserver.stores.redis_server import RedisServer

pytestmark = pytest.mark.timeout(120)
#: An epoch that no clock has reached.
_LATER = "9000000000000"


@pytest.fixture
async def cluster(tmp_path: Path, redis: RedisServer) -> AsyncIterator[Cluster]:
    """Three nodes; a scene is the node's that its first player came to."""
    async with running_cluster(tmp_path, redis, nodes={"placement": "arrival"}) as made:
        yield made


def resume_of(player: Player) -> dict[str, Any]:
    """How a player goes on with what it has got."""
    welcome = next(m["d"] for m in reversed(player.log) if m["t"] == "welcome")
    told = [m for m in player.log if m.get("st") == player.stream and "s" in m]
    return {
        "session": welcome["session"],
        "token": welcome["resume_token"],
        "cursors": [{"st": player.stream, "s": max(m["s"] for m in told)}],
    }


async def go_on(cluster: Cluster, player: Player, node: str, **wish: Any) -> Player:
    """A player resumes at a node, and goes where it is sent, until it is welcomed."""
    resume = resume_of(player)
    for _ in range(20):
        again = await Player.dial(cluster.nodes[node], player.name)  # type: ignore[arg-type]
        again.stream, again._last_id = player.stream, player._last_id
        await again.send(
            "identify", {"player": player.name, "auth": {"kind": "none"}, "resume": resume, **wish}
        )
        while not again.log or again.log[-1]["t"] not in ("welcome", "error"):
            await again.receive()
        if again.log[-1]["t"] == "welcome":
            return again
        assert again.log[-1]["d"]["code"] in ("moved", "busy"), again.log[-1]
        url = next((m["d"]["url"] for m in again.log if m["t"] == "scene.moved"), "")
        node = url.removeprefix("ws://").removesuffix(".example") or node
        await again.closed()
        await asyncio.sleep(0.05)
    raise AssertionError("sent about without end")


@pytest.mark.parametrize("what", ["scene", "session"])
async def test_nobody_is_told_that_something_is_accepted_which_is_not_kept(
    cluster: Cluster, what: str
) -> None:
    """Another node has the scene, or the session, and this one does not know yet."""
    ann = await cluster.player("one", "ann")
    welcome = next(m["d"] for m in ann.log if m["t"] == "welcome")
    bucket = f"scene.{SCENE}" if what == "scene" else f"session.{welcome['session']}"
    cluster.redis.command("SET", f"troupe:e:{bucket}", _LATER)
    await ann.send("say", {"npc": "mira", "text": "Hello?"}, st=SCENE, id=50)
    assert await ann.closed() == 4450
    assert not [m for m in ann.log if m.get("re") == 50]
    assert not {"player.said", "npc.turn.start"} & set(ann.types())
    # It was not carried out, so it is now, once, with the token that the client has.
    again = await go_on(cluster, ann, "one")
    assert next(m["d"]["resumed"] for m in again.log if m["t"] == "welcome")
    accepted = await again.ask("say", {"npc": "mira", "text": "Hello?"}, id=50)
    assert accepted["t"] == "say.accepted"
    end = await again.get("npc.turn.end")
    assert end["d"]["text"] == REPLY
    items = (await again.ask("history.get", {"npc": "mira"}, id=51))["d"]["items"]
    assert [item["text"] for item in items] == ["Hello?", REPLY]


async def test_players_of_one_scene_come_back_at_several_nodes_at_once(cluster: Cluster) -> None:
    """Each of these nodes would open the scene and take up all who are in it. One does; everybody
    goes on there, in their seats, with the token that they have."""
    rooms = [f"r{number}" for number in range(12)]
    wishes = [{"scene": SCENE, "instance": room} for room in rooms for _ in range(3)]
    players = []
    for number, wish in enumerate(wishes):
        player = await cluster.player("one", f"p{number}", join=False)
        player.stream = (await player.ask("scene.join", wish))["st"]
        players.append(player)
    cluster.nodes["one"].kill()
    for room in rooms:
        while cluster.owner(f"{SCENE}.{room}"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    back = await asyncio.gather(
        *(
            go_on(cluster, player, ("two", "three")[number % 2])
            for number, player in enumerate(players)
        )
    )
    epochs: dict[str, set[int]] = {}
    for player in back:
        assert next(m["d"]["resumed"] for m in player.log if m["t"] == "welcome"), player.name
        assert player.stream is not None
        while player.log[-1]["t"] != "scene.synced" or player.log[-1]["st"] != player.stream:
            await player.receive()
        epochs.setdefault(player.stream, set()).add(player.log[-1]["ep"])
        answer = await player.ask("history.get", {"npc": "mira"}, id=99)
        assert answer["t"] == "history", str(answer)
    assert all(len(found) == 1 for found in epochs.values()), epochs
