"""Players at a node that only carries what they and the owner of their scene say: they cannot tell.

Real nodes in processes of their own, on a real Redis.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.gameserver.cluster import LEASE_S, REPLY, Cluster, running_cluster
from tests.gameserver.crowd import Talker, agree, all_were_heard
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import SCENE
from tests.gameserver.stores.redis_server import RedisServer
from tests.gameserver.test_crashes import FREE, settle

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
async def cluster(tmp_path: Path, redis: RedisServer) -> AsyncIterator[Cluster]:
    """Three nodes that carry; scenes are the first comer's."""
    nodes = {"relay": True, "placement": "arrival"}
    limits = {**FREE["limits"], "bytes_per_s": 1e7, "bytes_burst": 10_000_000}
    guards = {"stall_s": 60.0, "tcp_user_timeout_s": 60.0}
    async with running_cluster(tmp_path, redis, nodes=nodes, limits=limits, guards=guards) as made:
        yield made


def heard_of(player: Player, *types: str) -> list[Message]:
    """What a player was told of its scene: all of it but the times."""
    told = [m for m in player.log if m.get("st") == SCENE and m["t"] in types]
    return [{key: value for key, value in m.items() if key != "ts"} for m in told]


async def test_it_is_as_if_one_were_there(cluster: Cluster) -> None:
    """Ann is at the owner; Bob is carried there. Both are told the same, under the same numbers."""
    ann = await cluster.player("one", "ann")
    bob = await cluster.player("two", "bob")
    assert bob.log[-1]["t"] == "scene.joined"
    for player in (bob, ann):
        end = await player.hear()
        assert end["text"] == REPLY
        for other in (ann, bob):
            if other is not player:
                await other.get("npc.turn.end", turn=end["turn"])
            assert other.heard(end["turn"]) == REPLY
    events = ("player.said", "npc.turn.start", "npc.turn.end", "presence", "world.event")
    both = heard_of(ann, *events)[-6:], heard_of(bob, *events)[-6:]
    assert both[0] == both[1]
    # A command that is sent twice runs once; whispers, history and errors come through.
    again = await bob.ask("say", {"npc": "mira", "text": "Twice?"}, id=50)
    assert (await bob.ask("say", {"npc": "mira", "text": "Twice?"}, id=50)) == again
    assert (await bob.ask("say", {"npc": "nobody", "text": "?"}, id=51))["d"]["code"] == "no_npc"
    await bob.send("say", {"npc": "harn", "text": "Psst", "to": ["bob"]}, st=SCENE, id=52)
    assert (await bob.get("player.said", text="Psst"))["st"] == "me"
    items = (await bob.ask("history.get", {"npc": "mira"}, id=53))["d"]["items"]
    assert [item["text"] for item in items[:4]] == ["Hello?", REPLY, "Hello?", REPLY]
    await bob.send("heartbeat", {"n": 7, "cursors": [{"st": SCENE, "s": 1}]})
    await bob.get("heartbeat.ack", n=7)
    await bob.socket.send("{")
    await bob.get("error", code="bad_json")
    await bob.send("identify", {"player": "eve", "auth": {"kind": "none"}})
    await bob.get("error", code="already_identified")
    assert not [m for m in bob.log if m["t"] in ("scene.moved", "reconnect", "scene.synced")]
    assert [m["t"] for m in bob.log].count("hello") == [m["t"] for m in bob.log].count("welcome")
    # A goodbye is one: the seat is free at once.
    await bob.send("bye")
    assert await bob.closed() == 1000
    left = await ann.get("presence")
    while left["d"]["changes"][0]["what"] != "leave":
        left = await ann.get("presence")
    assert left["d"]["changes"][0]["player"] == "bob"


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "SIGTERM"])
async def test_when_the_owner_ends_its_players_are_only_kept_waiting(
    cluster: Cluster, how: str
) -> None:
    """Bob is carried by node two to node one, in the middle of a turn. He stays connected."""
    await cluster.player("one", "ann")
    bob = await cluster.player("two", "bob")
    accepted = await bob.say()
    start = await bob.get("npc.turn.start", cause=[accepted["d"]["msg"]])
    await bob.get("npc.delta")
    cluster.nodes["one"].signal(getattr(signal, how))
    number, answers = 70, list[dict[str, Any]]()
    await bob.send("say", {"npc": "mira", "text": "And now?"}, st=SCENE, id=number)
    async with asyncio.timeout(LEASE_S * 4 + 20):
        end = await bob.get("npc.turn.end", turn=start["d"]["turn"])
        assert end["d"]["status"] in ("abandoned", "interrupted")
        while not answers:
            while not (answers := [m for m in bob.log if m.get("re") == number]):
                await bob.receive()
            if how == "SIGTERM" and answers[0]["d"].get("code") == "draining":
                # A node that goes says so as long as it is there: whoever hears it asks again.
                await asyncio.sleep(answers[0]["d"]["retry_ms"] / 1000)
                number, answers = number + 1, []
                await bob.send("say", {"npc": "mira", "text": "And now?"}, st=SCENE, id=number)
    assert [m["t"] for m in answers] == ["say.accepted"], str(answers)
    said = answers[0]["d"]["msg"]
    bob._read = 0
    start = await bob.get("npc.turn.start", cause=[said])
    assert (await bob.get("npc.turn.end", turn=start["d"]["turn"]))["d"]["text"] == REPLY
    numbers = [m["s"] for m in heard_of(bob, "player.said", "npc.turn.start", "npc.turn.end")]
    assert numbers == sorted(set(numbers)), "no double"
    events = [m["s"] for m in bob.log if m.get("st") == SCENE and "s" in m]
    assert events == list(range(events[0], events[0] + len(events))), "no gap"
    epochs = [m["ep"] for m in bob.log if m.get("st") == SCENE and "ep" in m]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 2
    assert bob.types().count("hello") == 1
    assert not {"reconnect", "scene.moved", "scene.synced"} & set(bob.types())
    assert {m["d"]["code"] for m in bob.log if m["t"] == "error"} <= {"draining"}
    assert cluster.owner() in ("two", "three")


async def test_when_the_edge_ends_its_players_go_on_at_another_one(cluster: Cluster) -> None:
    ann = await cluster.player("one", "ann")
    bob = await cluster.player("two", "bob")
    end = await bob.hear()
    welcome = next(m["d"] for m in bob.log if m["t"] == "welcome")
    cluster.nodes["two"].kill()
    await ann.get("presence")
    assert (await ann.hear("Gone?"))["text"] == REPLY
    last = max(m["s"] for m in bob.log if m.get("st") == SCENE and "s" in m)
    resume = {
        "session": welcome["session"],
        "token": welcome["resume_token"],
        "cursors": [{"st": SCENE, "s": last}],
    }
    back = await Player.dial(cluster.nodes["three"], "bob")  # type: ignore[arg-type]
    answer = (await back.identify(resume=resume))["d"]
    assert answer["resumed"]
    assert answer["resume_token"] not in ("", welcome["resume_token"])
    await back.get("scene.synced")
    back.stream, back._last_id = SCENE, 100
    assert (await back.hear("Here?"))["text"] == REPLY
    missed = [m["s"] for m in back.log if m.get("st") == SCENE and "s" in m and "re" not in m]
    assert min(missed) == last + 1
    # A token that is used up, or somebody else's, opens nothing there, either.
    for name in ("bob", "eve"):
        thief = await Player.dial(cluster.nodes["three"], name)  # type: ignore[arg-type]
        assert not (await thief.identify(resume=resume))["d"]["resumed"]
    assert end["text"] == REPLY


async def test_one_more_scene_is_another_connection_to_the_same_address(cluster: Cluster) -> None:
    """Bob is carried to one scene and wants a second one, which is at a third node."""
    await cluster.player("one", "ann")
    cid = await cluster.player("three", "cid", join=False)
    wish = {"scene": SCENE, "instance": "b"}
    assert (await cid.ask("scene.join", wish))["t"] == "scene.joined"
    bob = await cluster.player("two", "bob")
    moved = await bob.ask("scene.join", wish)
    assert moved["t"] == "scene.moved"
    assert moved["d"]["url"] == "ws://two.example", "he may have no way to others"
    second = await Player.dial(cluster.nodes["two"], "bob")  # type: ignore[arg-type]
    await second.identify(auth={"kind": "ticket", "token": moved["d"]["ticket"]})
    assert (await second.ask("scene.join", wish))["t"] == "scene.joined"
    assert (await bob.hear())["text"] == REPLY
    # Who leaves its scene is carried on to the next one, over the connection that it has.
    assert (await bob.ask("scene.leave", {}))["t"] == "scene.left"
    joined = await bob.ask("scene.join", wish, st=None)
    assert joined["t"] == "scene.joined"
    bob.stream = joined["st"]
    assert (await bob.hear())["text"] == REPLY
    for name in ("ann", "cid"):
        assert name not in {m["d"].get("player") for m in bob.log if m["t"] == "player.said"}


async def test_nobody_but_a_node_comes_in_by_the_door_for_nodes(cluster: Cluster) -> None:
    for headers in ({}, {"Authorization": "Bearer " + "x" * 43}, {"Authorization": "x" * 3000}):
        url = f"ws://127.0.0.1:{cluster.nodes['one'].port}/v1/relay"
        socket = await connect(url, subprotocols=["npc.v1.json"], additional_headers=headers)  # type: ignore[list-item]
        player = Player(socket, "eve")
        with contextlib.suppress(Exception):
            await player.send("identify", {"player": "eve", "auth": {"kind": "none"}})
        await player.get("error", code="auth_failed")
        assert await player.closed() == 4401
        assert "welcome" not in player.types()


async def test_talk_goes_on_while_nodes_die_and_come_back(cluster: Cluster) -> None:
    """Players at all nodes talk, each of which both carries and owns, while the owner is killed,
    twice. Whoever was not connected to it goes on over the same connection; all agree."""
    nodes = list(cluster.nodes.values())
    talkers = [Talker(nodes, name, 1) for name in ("ann", "bob", "cid", "dan")]
    stop = asyncio.Event()
    lives = asyncio.gather(*(talker.live(stop) for talker in talkers))

    async def hear_more(turns: int) -> None:
        before = {talker.name: len(talker.ended) for talker in talkers}
        async with asyncio.timeout(60):
            while not all(len(t.ended) >= before[t.name] + turns for t in talkers):
                if lives.done():
                    lives.result()
                await asyncio.sleep(0.02)

    for _ in range(2):
        await hear_more(2)
        struck = cluster.nodes[cluster.owner()]
        struck.kill()
        for talker in talkers:
            if talker.server is struck:
                talker.drop()
        await struck.start()
    await hear_more(1)
    await all_were_heard(talkers, 3)
    stop.set()
    async with asyncio.timeout(60):
        await lives
    await settle(talkers)
    agree(talkers)
    moved = [m for talker in talkers for m in talker.log if m["t"] == "scene.moved"]
    assert moved == [], "nobody was sent anywhere"
