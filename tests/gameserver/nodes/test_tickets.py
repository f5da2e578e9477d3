"""Tickets let one player into one scene or session of another node, once and soon, with the rights
it had and no other; and whatever is wrong with one is told alike."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from gameserver.access import Pass
from gameserver.commands import Auth, Resume
from gameserver.game import GameServer
from gameserver.nodes.tickets import Tickets, ticket_of
from gameserver.protocol import Refusal
from gameserver.stores.store import StoreDown
from gameserver.tally import Tally
from tests.gameserver.cluster import REPLY, Cluster, running_cluster
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import SCENE
from tests.gameserver.stores.redis_server import RedisServer

SECRET = "s" * 32


class Shelf:
    """Where tickets lie, without a clock."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.down = False

    async def leave(self, name: str, value: bytes, seconds: float) -> None:
        if self.down:
            raise StoreDown("gone")
        assert 0 < seconds <= 30
        self.values[name] = value

    async def take(self, name: str) -> bytes | None:
        if self.down:
            raise StoreDown("gone")
        return self.values.pop(name, None)


async def refusal(tickets: Tickets, *shown: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await tickets.redeem(*shown)
    assert caught.value.close == 4401
    return f"{caught.value.code} {caught.value.msg}"


async def test_a_ticket_is_for_one_player_one_purpose_and_one_time() -> None:
    shelf = Shelf()
    tickets = Tickets(shelf, 30.0, Tally())  # type: ignore[arg-type]
    rights = Pass("acme", scenes=frozenset({"inn", "mill"}), any_event=True, expires=1e12)
    ticket = await tickets.for_scene("ann", "inn", rights)
    assert ticket not in str(shelf.values), "nothing that lies there opens anything"
    resume = Resume("s-1", "token")
    wrong = [
        ("x" * 43, "ann", None),
        ("", "ann", None),
        ("é" * 5000, "ann", None),
        (ticket, "bob", None),  # a thief
        (ticket, "ann", resume),  # another purpose
    ]
    reasons = {await refusal(tickets, *shown) for shown in wrong}
    found = await tickets.redeem(ticket, "ann", None)  # still good
    assert found == Pass("acme", "ann", frozenset({"inn"}), any_event=True, expires=1e12)
    reasons.add(await refusal(tickets, ticket, "ann", None))
    assert len(reasons) == 1, "and nothing tells what was wrong"
    # To go on with a session: all rights, and that session only.
    ticket = await tickets.for_session("ann", "s-1", rights)
    for shown in [(ticket, "ann", None), (ticket, "ann", Resume("s-2", "token"))]:
        reasons.add(await refusal(tickets, *shown))
    assert (await tickets.redeem(ticket, "ann", resume)).scenes == {"inn", "mill"}
    assert len(reasons) == 1
    # Nobody gets a ticket for what it may not enter, or while none can be kept.
    ticket = await tickets.for_scene("ann", "tower", rights)
    assert (await tickets.redeem(ticket, "ann", None)).scenes == frozenset()
    shelf.down = True
    assert await tickets.for_scene("ann", "inn", rights) == ""
    with pytest.raises(Refusal) as caught:
        await tickets.redeem(ticket, "ann", None)
    assert caught.value.code == "busy"


@pytest.mark.parametrize(
    ("auth", "target", "ticket"),
    [
        (None, "/v1/ws", None),
        (None, "/v1/ws?ticket=a", "a"),
        (None, "/v1/ws?scene=inn&ticket=a&ticket=b", "b"),
        (Auth("none"), "/v1/ws?ticket=a", "a"),
        (Auth("ticket", "t"), "/v1/ws?ticket=a", "t"),
        (Auth("ticket"), "/v1/ws", ""),
        (Auth("jwt", "t"), "/v1/ws?ticket=a", None),
        (None, "/v1/ws?ticket", ""),
    ],
)
def test_where_a_ticket_may_stand(auth: Auth | None, target: str, ticket: str | None) -> None:
    assert ticket_of(auth, target) == ticket


async def test_a_server_without_other_nodes_knows_no_tickets(server: GameServer) -> None:
    player = await Player.dial(server)
    await player.send("identify", {"player": "ann", "auth": {"kind": "ticket", "token": "x" * 43}})
    assert (await player.get("error"))["d"]["code"] == "auth_failed"
    assert await player.closed() == 4401


def token(player: str, *, scenes: list[str] | None = None, life_s: float = 3600) -> str:
    claims: Message = {"sub": player, "iss": "us", "aud": "troupe", "exp": time.time() + life_s}
    return jwt.encode(claims | ({"scenes": scenes} if scenes else {}), SECRET, "HS256")


@pytest.fixture
async def cluster(tmp_path: Path, redis: RedisServer) -> AsyncIterator[Cluster]:
    """Three nodes that want a signed token; scenes are the first comer's."""
    (tmp_path / "secret").write_text(SECRET)
    key = {"algorithm": "HS256", "file": str(tmp_path / "secret")}
    auth = {"jwt": {"issuer": "us", "audience": "troupe", "keys": [key]}}
    nodes = {"placement": "arrival"}
    async with running_cluster(tmp_path, redis, nodes=nodes, auth=auth) as made:
        yield made


async def identified(
    cluster: Cluster, node: str, name: str, kind: str, shown: str, **wish: Any
) -> Player:
    """A player who shows a credential in `identify`, or a ticket in the address."""
    suffix = "" if kind != "address" else f"?ticket={shown}"
    auth = {"kind": "none"} if kind == "address" else {"kind": kind, "token": shown}
    player = await Player.dial(cluster.nodes[node], name, suffix=suffix)  # type: ignore[arg-type]
    await player.send("identify", {"player": name, "auth": auth, **wish})
    await player.get("hello")
    return player


async def redirected(cluster: Cluster, name: str, life_s: float = 3600) -> str:
    """The ticket that a player gets whom node two sends to node one."""
    signed = token(name, scenes=[SCENE, "mill"], life_s=life_s)
    player = await identified(cluster, "two", name, "jwt", signed)
    await player.get("welcome")
    moved = await player.ask("scene.join", {"scene": SCENE})
    assert moved["t"] == "scene.moved"
    assert moved["d"]["url"] == "ws://one.example"
    assert len(moved["d"]["ticket"]) == 43
    await player.socket.close()
    return str(moved["d"]["ticket"])


@pytest.mark.timeout(120)
async def test_who_is_sent_on_gets_in_by_its_ticket_alone(cluster: Cluster) -> None:
    ann = await identified(cluster, "one", "ann", "jwt", token("ann"))
    await ann.get("welcome")
    assert (await ann.ask("scene.join", {"scene": SCENE}))["t"] == "scene.joined"
    for kind in ("ticket", "address"):
        ticket = await redirected(cluster, "bob")
        thief = await identified(cluster, "one", "eve", kind, ticket)
        assert (await thief.receive())["d"]["code"] == "auth_failed"
        assert await thief.closed() == 4401
        # Of many who show it at once, one comes in.
        tries = await asyncio.gather(
            *(identified(cluster, "one", "bob", kind, ticket) for _ in range(5))
        )
        answers = [await player.receive() for player in tries]
        assert sorted(a["t"] for a in answers) == ["error"] * 4 + ["welcome"]
        assert {a["d"]["code"] for a in answers if a["t"] == "error"} == {"auth_failed"}
        bob = next(p for p in tries if p.log[-1]["t"] == "welcome")
        assert [scene["id"] for scene in bob.log[-1]["d"]["scenes"]] == [SCENE]
        bob.stream = (await bob.ask("scene.join", {"scene": SCENE}))["st"]
        assert (await bob.hear())["text"] == REPLY
        # The scene of the ticket, and no other; for those it shows its own token.
        assert (await bob.ask("scene.join", {"scene": "mill"}))["d"]["code"] == "forbidden"
        await bob.send("auth.refresh", {"auth": {"kind": "jwt", "token": token("bob")}}, id=90)
        await bob.get("ack")
        assert (await bob.ask("scene.join", {"scene": "mill"}, id=91))["d"]["code"] == "no_scene"
        ticketed = await bob.ask("world.event", {"name": "quake", "data": 1}, id=92)
        assert ticketed["d"]["code"] == "forbidden"
        await bob.socket.close()
    # The token's life goes on with the ticket.
    ticket = await redirected(cluster, "cid", life_s=1.0)
    cid = await identified(cluster, "one", "cid", "ticket", ticket)
    await cid.get("notice", code="auth_expired")
    # A session that goes on elsewhere gets one, too, for itself alone.
    resume = {
        "session": next(m["d"]["session"] for m in ann.log if m["t"] == "welcome"),
        "token": next(m["d"]["resume_token"] for m in ann.log if m["t"] == "welcome"),
    }
    lost = await identified(cluster, "three", "ann", "jwt", token("ann"), resume=resume)
    moved = (await lost.get("scene.moved"))["d"]
    fresh = await identified(cluster, "one", "ann", "ticket", moved["ticket"])
    assert (await fresh.receive())["d"]["code"] == "auth_failed", "not for a new session"
    back = await identified(cluster, "one", "ann", "ticket", moved["ticket"], resume=resume)
    assert (await back.get("welcome"))["d"]["resumed"]


@pytest.mark.timeout(120)
async def test_a_ticket_is_soon_nothing(tmp_path: Path, redis: RedisServer) -> None:
    nodes = {"placement": "arrival", "ticket_s": 0.05}
    async with running_cluster(tmp_path, redis, nodes=nodes) as cluster:
        await cluster.join("one", "ann")
        bob = await cluster.player("two", "bob", join=False)
        moved = (await bob.ask("scene.join", {"scene": SCENE}))["d"]
        await asyncio.sleep(0.1)
        late = await identified(cluster, "one", "bob", "ticket", moved["ticket"])
        assert (await late.receive())["d"]["code"] == "auth_failed"
