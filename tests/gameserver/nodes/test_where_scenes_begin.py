"""Three real nodes on a real Redis agree where a scene begins, and send players there."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gameserver.cluster import REPLY, Cluster, running_cluster
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE
from tests.gameserver.stores.redis_server import RedisServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def cluster(tmp_path: Path, redis: RedisServer) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, redis, nodes={"idle_players": 3}) as made:
        yield made


async def test_all_nodes_send_to_one_and_a_node_that_goes_gets_nothing(cluster: Cluster) -> None:
    """Players come to all nodes at once and want scenes that nobody runs: those with the same
    people begin at one node, until it has its share of players; the next ones elsewhere."""
    names = list(cluster.nodes)
    came = await asyncio.gather(
        *(cluster.join(node, f"p{i}") for i, node in enumerate(names)),
        *(cluster.join(node, f"q{i}") for i, node in enumerate(names)),
    )
    home = cluster.owner()
    for player, moves in came:
        assert (await player.hear())["text"] == REPLY
        assert [move["url"] for move in moves] in ([], [f"ws://{home}.example"]), "no circles"
    # It has more than its share by now; the others have heard of it with its next renewal.
    second = home
    for number in range(100):
        _, moves = await cluster.join(home, f"r{number}", f"i{number}")
        second = cluster.owner(f"{SCENE}.i{number}")
        if second != home:
            assert [move["url"] for move in moves] == [f"ws://{second}.example"]
            break
        await asyncio.sleep(0.05)
    assert second != home
    assert cluster.owner() == home, "a scene that runs is not moved"
    # A node that is told to end takes nothing more, and what it had may begin elsewhere at once.
    third = next(name for name in names if name not in (home, second))
    assert await cluster.nodes[home].terminate() == 0
    assert cluster.owner() == ""
    for number in range(4):
        player, moves = await cluster.join(third, f"s{number}", f"j{number}")
        assert all(move["url"] != f"ws://{home}.example" for move in moves)
        assert cluster.owner(f"{SCENE}.j{number}") in (second, third)


async def test_a_node_that_died_gets_nothing_once_it_is_not_heard_of(cluster: Cluster) -> None:
    ann, _ = await cluster.join("one", "ann")
    home = cluster.owner()
    others = [name for name in cluster.nodes if name != home]
    cluster.nodes[home].kill()
    wish = {"scene": SCENE, "instance": "k"}  # of the same people: it would have been its
    player = await Player.dial(cluster.nodes[others[0]], "bob")  # type: ignore[arg-type]
    await player.identify()
    async with asyncio.timeout(20):
        while (await player.ask("scene.join", wish))["d"].get("url") == f"ws://{home}.example":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        # It may have claimed it after it was last heard of.
        while cluster.owner() == home:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    # A session that is taken up goes where its scene is to go on, too.
    welcome = next(m["d"] for m in ann.log if m["t"] == "welcome")
    wish = {"session": welcome["session"], "token": welcome["resume_token"]}
    sent: list[str] = []
    at = cluster.nodes[others[1]]
    while True:
        ann = await Player.dial(at, "ann")  # type: ignore[arg-type]
        auth = {"kind": "none"}
        await ann.send("identify", {"player": "ann", "auth": auth, "resume": wish})
        await ann.get("hello")
        answer = await ann.receive()
        if answer["t"] == "welcome":
            break
        assert answer["t"] == "scene.moved", answer
        sent.append(answer["d"]["url"])
        at = cluster.at(sent[-1])
    assert answer["d"]["resumed"]
    assert len(sent) <= 1
    assert {cluster.owner(), cluster.owner(f"{SCENE}.k")} <= set(others)
