"""One session, wanted at several places at once: exactly one has it, and neither who loses it nor
the scenes that it is in at other nodes are touched.

Real nodes in processes of their own, on a real Redis.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gameserver.cluster import LEASE_S, REPLY, Cluster, running_cluster
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import SCENE
from tests.gameserver.stores.redis_server import RedisServer

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
async def cluster(tmp_path: Path, redis: RedisServer) -> AsyncIterator[Cluster]:
    """Three nodes; a scene is the node's that its first player came to."""
    flow = {"resume_s": 4.0}
    async with running_cluster(tmp_path, redis, nodes={"placement": "arrival"}, flow=flow) as made:
        yield made


def wish_of(player: Player) -> Message:
    """How a player goes on with its session."""
    welcome = next(m["d"] for m in reversed(player.log) if m["t"] == "welcome")
    return {"session": welcome["session"], "token": welcome["resume_token"]}


async def resume(cluster: Cluster, node: str, name: str, wish: Message) -> tuple[Player, Message]:
    """A new connection that resumes; with it, the first answer that it gets."""
    player = await Player.dial(cluster.nodes[node], name)  # type: ignore[arg-type]
    await player.send("identify", {"player": name, "auth": {"kind": "none"}, "resume": wish})
    while True:
        message = await player.receive()
        if message["t"] in ("welcome", "error", "scene.moved"):
            return player, message


async def is_undisturbed(player: Player) -> None:
    """A player of the scene is still connected, in the epoch in which it came, and answered."""
    assert (await player.hear("Still here?"))["text"] == REPLY
    assert not {"scene.moved", "scene.snapshot"} & set(player.types())
    assert len({m["ep"] for m in player.log if m.get("st") == SCENE and "ep" in m}) == 1
    assert not [m for m in player.log if m["t"] == "error"]


async def test_a_session_that_goes_on_elsewhere_takes_no_scene_along(cluster: Cluster) -> None:
    """Eve resumes at another node, where she is in no scene, and then enters a scene with the
    connection that she has left open. Everybody else in there notices nothing."""
    ann = await cluster.player("one", "ann")
    for _ in range(3):
        eve = await cluster.player("one", "eve", join=False)
        again, welcome = await resume(cluster, "two", "eve", wish_of(eve))
        assert welcome["d"]["resumed"] is True
        await eve.send("scene.join", {"scene": SCENE}, id=1)
        assert await eve.closed() in (4409, 4450)
        assert "scene.joined" not in eve.types()
        assert (await again.ask("heartbeat", {"n": 1}))["t"] == "heartbeat.ack"
        await again.send("bye")
    await is_undisturbed(ann)
    seen = [c["player"] for m in ann.log if m["t"] == "presence" for c in m["d"]["changes"]]
    assert "eve" not in seen, "the loser of a session touches nothing"


async def test_however_a_join_and_a_resume_elsewhere_fall_together_one_has_the_session(
    cluster: Cluster,
) -> None:
    ann = await cluster.player("one", "ann")
    rounds, joined = 12, 0
    for number in range(rounds):
        eve = await cluster.player("one", "eve", join=False)
        wish = wish_of(eve)

        async def join(eve: Player = eve, number: int = number) -> None:
            await asyncio.sleep(0.0005 * number)
            await eve.send("scene.join", {"scene": SCENE}, id=1)

        (again, first), _ = await asyncio.gather(resume(cluster, "two", "eve", wish), join())
        if first["t"] == "welcome" and first["d"]["resumed"]:  # it is at node two now
            await eve.closed()
            again._last_id = 1  # which the join has had
            assert (await again.ask("heartbeat", {"n": 1}))["t"] == "heartbeat.ack"
            await again.send("bye")
        else:  # it is at node one, in the scene
            assert first["t"] == "scene.moved", first
            assert (await eve.get("scene.joined"))["re"] == 1
            joined += 1
            await eve.send("bye")
    assert (await ann.hear("Still here?"))["text"] == REPLY


async def test_two_who_resume_at_two_nodes_at_once_get_one_session(cluster: Cluster) -> None:
    """In no scene, so that either may have it; and the token that was used opens nothing after."""
    for number in range(6):
        eve = await cluster.player("three", "eve", join=False)
        wish = wish_of(eve)
        both = await asyncio.gather(
            *(resume(cluster, node, "eve", wish) for node in ("one", "two", "one", "two"))
        )
        winners = [player for player, m in both if m["t"] == "welcome" and m["d"]["resumed"]]
        live = []
        for player in winners:  # one may be welcome, and told at once that it has lost
            await player.send("heartbeat", {"n": number})
            while player.log[-1]["t"] not in ("heartbeat.ack", "error"):
                await player.receive()
            if player.log[-1]["t"] == "heartbeat.ack":
                live.append(player)
        assert live, [m for _, m in both]
        # Whoever still answers, only one may write: ask for something that is kept.
        answers = await asyncio.gather(
            *(enter(player, f"x{number}") for player in live), return_exceptions=True
        )
        assert [a for a in answers if a == "scene.joined"] == ["scene.joined"], answers
        late, told = await resume(cluster, "one", "eve", wish)
        assert told["t"] != "welcome" or told["d"]["resumed"] is False
        for player in (*(p for p, _ in both), late, eve):
            await player.socket.close()


async def enter(player: Player, instance: str) -> str:
    """What becomes of a wish to join."""
    answer = await player.ask("scene.join", {"scene": SCENE, "instance": instance})
    return str(answer["t"])


async def test_after_a_crash_each_of_two_nodes_has_one_scene_of_a_player_and_loses_nothing(
    cluster: Cluster,
) -> None:
    """Eve was in two scenes of the node that died. Two others open one each and want her session;
    one has it, the other keeps its scene, and everybody in there, also when her seat ends."""
    eve = await cluster.player("one", "eve")
    assert (await enter(eve, "b")) == "scene.joined"
    cluster.nodes["one"].kill()
    while cluster.owner() or cluster.owner(f"{SCENE}.b"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    ann = await cluster.player("two", "ann")
    bob = await Player.dial(cluster.nodes["three"], "bob")  # type: ignore[arg-type]
    await bob.identify()
    bob.stream = f"{SCENE}.b"
    assert (await enter(bob, "b")) == "scene.joined"
    # Seats last as long as sessions do, from when they were last heard of.
    for player in (ann, bob):
        await player.get("presence", changes=[left("eve")])
        assert (await player.hear("Still here?"))["text"] == REPLY
        assert not {"scene.moved", "error"} & set(player.types())
    assert {cluster.owner(), cluster.owner(f"{SCENE}.b")} == {"two", "three"}


async def test_an_old_seat_does_not_take_a_session_from_where_it_is_played(
    cluster: Cluster,
) -> None:
    """Eve's scenes fell to two nodes; she plays at one of them when the other one dies as well."""
    eve = await cluster.player("one", "eve")
    assert (await enter(eve, "b")) == "scene.joined"
    wish = wish_of(eve)
    cluster.nodes["one"].kill()
    while cluster.owner() or cluster.owner(f"{SCENE}.b"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    bob = await Player.dial(cluster.nodes["three"], "bob")  # type: ignore[arg-type]
    await bob.identify()
    assert (await enter(bob, "b")) == "scene.joined"
    ann = await cluster.player("two", "ann")
    eve, welcome = await resume(cluster, "two", "eve", wish)
    assert welcome["t"] == "welcome", welcome
    assert welcome["d"]["resumed"] is True
    await eve.get("scene.snapshot")
    eve.stream, eve._last_id = SCENE, 100
    cluster.nodes["three"].kill()
    while cluster.owner(f"{SCENE}.b"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await cluster.nodes["one"].start()
    cid = await Player.dial(cluster.nodes["one"], "cid")  # type: ignore[arg-type]
    await cid.identify()
    assert (await enter(cid, "b")) == "scene.joined"
    assert "eve" not in [p["id"] for p in cid.log[-1]["d"]["players"]]
    await asyncio.sleep(LEASE_S)
    for player in (eve, ann):
        assert (await player.hear("Still here?"))["text"] == REPLY
        assert not {"scene.moved", "error"} & set(player.types())


def left(player: str) -> dict[str, Any]:
    return {"player": player, "what": "leave", "meta": {"name": player, "role": "player"}}
