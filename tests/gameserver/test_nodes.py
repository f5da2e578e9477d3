"""Several nodes on one Redis: one owner of a scene at any time, by epoch; who comes to the wrong
node is sent on; a node that ends, sleeps or is cut off is replaced, and says nothing more."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gameserver.cluster import LEASE_S, REPLY, Cluster, running_cluster
from tests.gameserver.crowd import Talker, agree, all_were_heard
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE
from tests.gameserver.stores.redis_server import PROGRAM, RedisServer
from tests.gameserver.test_crashes import settle

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed"),
    pytest.mark.timeout(300),
]


@pytest.fixture
async def cluster(tmp_path: Path, redis: RedisServer) -> AsyncIterator[Cluster]:
    """Three nodes; a scene is the node's that its first player came to."""
    async with running_cluster(tmp_path, redis, nodes={"placement": "arrival"}) as made:
        yield made


async def test_who_comes_to_the_wrong_node_is_sent_on(cluster: Cluster) -> None:
    ann = await cluster.player("one", "ann")
    bob = await cluster.player("two", "bob", join=False)
    moved = await bob.ask("scene.join", {"scene": SCENE})
    assert moved["t"] == "scene.moved"
    assert moved["d"]["url"] == "ws://one.example"
    assert (await bob.ask("scene.join", {"scene": SCENE, "instance": "b"}))["t"] == "scene.joined"
    there = await cluster.player("one", "bob")
    end = await there.hear()
    assert (await ann.get("npc.turn.end", turn=end["turn"]))["d"] == end
    # A node that ends in good order hands over at once, and its players go on elsewhere.
    welcome = next(m["d"] for m in ann.log if m["t"] == "welcome")
    last = max(m["s"] for m in ann.log if m.get("st") == SCENE and "s" in m)
    assert await cluster.nodes["one"].terminate() == 0
    again = await Player.dial(cluster.nodes["two"], "ann")  # type: ignore[arg-type]
    resume = {
        "session": welcome["session"],
        "token": welcome["resume_token"],
        "cursors": [{"st": SCENE, "s": last}],
    }
    assert (await again.identify(resume=resume))["d"]["resumed"]
    synced = await again.get("scene.synced")
    again.stream, again._last_id = SCENE, 100
    told = (await again.ask("history.get", {"npc": "mira"}))["d"]["items"]
    assert [item["text"] for item in told] == ["Hello?", REPLY]
    assert synced["ep"] > there.log[-1].get("ep", 0)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
async def test_a_node_that_ends_or_sleeps_is_replaced_and_nothing_is_lost(
    cluster: Cluster, how: str
) -> None:
    """Players talk while the node that has their scene is killed, or stopped past its lease, and
    then the one that took over."""
    nodes = list(cluster.nodes.values())
    talkers = [Talker([nodes[0]], name, 1) for name in ("ann", "bob", "cid")]
    stop = asyncio.Event()
    lives = asyncio.gather(*(talker.live(stop) for talker in talkers))
    await asyncio.sleep(1.0)
    for talker in talkers:
        talker.servers = nodes
    for _ in range(2):
        before = {talker.name: len(talker.ended) for talker in talkers}
        struck, began = cluster.nodes[cluster.owner()], time.monotonic()
        struck.signal(getattr(signal, how))
        for talker in talkers:
            talker.deaf_to.append(struck)
            talker.drop()  # a client finds out by its heartbeat
        while not all(len(t.ended) > before[t.name] for t in talkers):
            assert time.monotonic() - began < 20
            await asyncio.sleep(0.02)
        taken = time.monotonic() - began
        assert taken < LEASE_S + 1 + 3, f"handed over after {taken:.1f} s"  # and a turn spoken
        if how == "SIGSTOP":
            struck.signal(signal.SIGCONT)
            for talker in talkers:
                talker.deaf_to.clear()
    await all_were_heard(talkers, 3)
    stop.set()
    async with asyncio.timeout(60):
        await lives
    await settle(talkers)
    agree(talkers)
    epochs = {m["ep"] for m in talkers[0].events.values() if m.get("st") == SCENE}
    assert len(epochs) >= 3, "another owner, another epoch"


async def test_a_session_goes_on_wherever_its_player_comes_back(cluster: Cluster) -> None:
    """Each node that had it still knows of it, and what it knows is old when it is back there."""
    welcome = (await cluster.player("one", "ann", join=False)).log[-1]["d"]
    for node in ("two", "one", "three", "two", "one"):
        ann = await Player.dial(cluster.nodes[node], "ann")  # type: ignore[arg-type]
        resume = {"session": welcome["session"], "token": welcome["resume_token"]}
        again = (await ann.identify(resume=resume))["d"]
        assert again["resumed"], (node, again)
        assert again["session"] == welcome["session"]
        welcome = again
    ann._last_id = 10
    assert (await ann.ask("scene.join", {"scene": SCENE}))["t"] == "scene.joined"


async def test_a_stopped_node_says_nothing_when_it_wakes(cluster: Cluster) -> None:
    """Its clients, which never left, hear no word more of a turn that another node has ended."""
    ann = await cluster.player("one", "ann")
    await ann.say()
    await ann.get("npc.delta")
    cluster.nodes["one"].signal(signal.SIGSTOP)
    await ann.quiet(0.2)
    heard = len([m for m in ann.log if m["t"] == "npc.delta"])
    deadline = time.monotonic() + LEASE_S * 2 + 2
    bob = await cluster.player("two", "bob", join=False)
    while (await bob.ask("scene.join", {"scene": SCENE}))["t"] != "scene.joined":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    cluster.nodes["one"].signal(signal.SIGCONT)
    code = await ann.closed()
    assert code == 4450
    assert len([m for m in ann.log if m["t"] == "npc.delta"]) == heard
    assert "npc.turn.end" not in ann.types()
    moved = [m["d"] for m in ann.log if m["t"] == "scene.moved"]
    assert len(moved) == 1
    assert ann.log[-1]["d"]["code"] == "moved"


async def test_scenes_stand_still_while_redis_is_gone_and_go_on_when_it_is_back(
    cluster: Cluster,
) -> None:
    ann = await cluster.player("one", "ann")
    assert (await ann.hear())["text"] == REPLY
    redis = cluster.redis
    redis.signal(signal.SIGSTOP)
    await ann.send("say", {"npc": "mira", "text": "Now?"}, st=SCENE, id=50)
    notice = await ann.get("notice", code="degraded")  # past the deadline
    assert notice["st"] == SCENE
    began = time.monotonic()
    refused = await ann.ask("say", {"npc": "mira", "text": "And now?"}, id=51)
    assert time.monotonic() - began < 1.0
    assert refused["d"]["code"] == "busy"
    assert not [m for m in ann.log if m.get("re") == 50], "nothing is told before it is kept"
    redis.signal(signal.SIGCONT)
    accepted = await ann.get("say.accepted")
    assert accepted["re"] == 50
    end = (await ann.get("npc.turn.end"))["d"]
    if end["status"] == "interrupted":
        assert end["reason"] == "degraded"
    ann._last_id = 60
    assert (await ann.hear("Again?"))["text"] == REPLY
    # A restart of Redis, with its data and without its scripts.
    redis.kill()
    redis.start()
    ann._last_id = 70
    async with asyncio.timeout(20):
        answer = await ann.ask("say", {"npc": "mira", "text": "Still?"})
        while answer["t"] != "say.accepted":
            await asyncio.sleep(0.2)
            answer = await ann.ask("say", {"npc": "mira", "text": "Still?"})
    for trouble, cure in (
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    ):
        redis.command(*trouble)
        await ann.send("say", {"npc": "harn", "text": "Now?"}, st=SCENE, id=ann._last_id + 1)
        ann._last_id += 1
        await asyncio.sleep(0.3)
        redis.command(*cure)
        async with asyncio.timeout(20):
            while not [m for m in ann.log if m.get("re") == ann._last_id]:
                await ann.receive()


async def test_a_node_that_is_cut_off_from_redis_alone_falls_silent_before_another_takes_over(
    cluster: Cluster,
) -> None:
    ann = await cluster.player("one", "ann")
    assert (await ann.hear())["text"] == REPLY
    # Slow is not gone: events come later, and nothing is lost.
    cluster.line.delay_s = 0.1
    began = time.monotonic()
    assert (await ann.hear("Slowly?"))["text"] == REPLY
    assert time.monotonic() - began < 3.0
    cluster.line.delay_s = 0.0
    accepted = await ann.say("And now?")
    start = await ann.get("npc.turn.start", cause=[accepted["d"]["msg"]])
    while len(ann.heard(start["d"]["turn"])) < 20:
        await ann.receive()
    cluster.line.open = False
    cut = time.monotonic()
    await ann.get("notice", code="degraded")
    silent = time.monotonic()
    assert silent - cut < LEASE_S, "before the lease can end"
    bob = await cluster.player("two", "bob", join=False)
    joined = await bob.ask("scene.join", {"scene": SCENE})
    while joined["t"] == "scene.moved":
        await asyncio.sleep(0.05)
        joined = await bob.ask("scene.join", {"scene": SCENE})
    assert joined["t"] == "scene.joined"
    assert LEASE_S / 2 < time.monotonic() - cut < LEASE_S + 1.0
    deaf = len(ann.log)
    await ann.quiet(0.3)
    assert all(m["t"] in ("notice", "error") for m in ann.log[deaf:]), "not a word more"
    cluster.line.open = True
    assert await ann.closed() == 4450
    events = [m for m in ann.log if m.get("st") == SCENE and "s" in m]
    assert {m["ep"] for m in events} == {accepted["ep"]}
    assert joined["ep"] > accepted["ep"]
    # What the old owner could not write never happened, and the turn has ended once.
    bob.stream = SCENE
    items = (await bob.ask("history.get", {"npc": "mira"}))["d"]["items"]
    assert [item["text"] for item in items[:5]] == ["Hello?", REPLY, "Slowly?", REPLY, "And now?"]
    assert items[5]["status"] == "abandoned"
    assert len(items) == 6
