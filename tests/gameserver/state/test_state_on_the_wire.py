"""What one client sets, the others come to know: the newest value, whoever asked for it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gameserver.game import GameServer
from gameserver.keys import key_line
from tests.gameserver.player import Player
from tests.gameserver.raw import narrow
from tests.gameserver.stage import SCENE, serving
from tests.gameserver.state.conftest import QUICK
from tests.gameserver.state.walker import CAPS, THINGS, Walker

BEGINNING = {
    ("door", "pos"): [1, 7],
    ("door", "open"): False,
    ("door", "lock"): "iron",
    ("lantern", "lit"): True,
}


async def test_who_joins_is_told_everything_as_full(server: GameServer) -> None:
    ann = await Walker.enter(server)
    assert ann.state == BEGINNING
    (delta,) = ann.deltas
    assert (delta["st"], delta["d"]["full"], "s" in delta) == (SCENE, True, False)
    joined = ann.types().index("scene.joined")
    assert ann.types().index("state.delta") > joined


async def test_what_one_sets_reaches_the_others_and_itself(server: GameServer) -> None:
    ann, bob = await Walker.enter(server), await Walker.enter(server, "bob")
    assert (await ann.put("door", "open", True))["t"] == "ack"
    await ann.walk(3.14159, 4)
    for walker in (ann, bob):
        await walker.knows("door", "open", True)
        await walker.knows("ann", "pos", [3.142, 4])
        assert not any(delta["d"].get("full") for delta in walker.deltas[1:])
    item = next(i for d in bob.deltas[1:] for i in d["d"]["items"] if i["e"] == "door")
    assert set(item) == {"e", "k", "v", "h", "o"}
    assert 0 < item["h"] < 2**53
    assert item["o"] == "troupe"


async def test_a_set_without_an_id_is_not_answered_unless_it_is_wrong(server: GameServer) -> None:
    ann = await Walker.enter(server)
    await ann.walk(1, 1)
    await ann.knows("ann", "pos", [1, 1])
    await ann.ask("heartbeat")
    assert "ack" not in ann.types()
    await ann.walk(1, 1, 1, 1)
    assert (await ann.get("error"))["d"]["code"] == "bad_field"


async def test_null_removes_and_so_does_leaving(server: GameServer) -> None:
    ann, bob = await Walker.enter(server), await Walker.enter(server, "bob")
    await ann.put("ann", "pose", "sits")
    await ann.walk(2, 2)
    await bob.knows("ann", "pos", [2, 2])
    await ann.put("ann", "pose", None)
    await bob.knows("ann", "pose", None)
    await ann.ask("scene.leave")
    await bob.knows("ann", "pos", None)
    late = await Walker.enter(server, "cid")
    assert late.state == BEGINNING


async def test_who_did_not_name_the_capability_is_told_nothing(server: GameServer) -> None:
    ann, bob = await Walker.enter(server), await Player.enter(server, "bob")
    await ann.put("door", "open", True)
    await ann.knows("door", "open", True)
    await bob.ask("heartbeat")
    assert "state.delta" not in bob.types()
    assert (await bob.ask("state.set", {"items": [{"e": "door", "k": "open", "v": False}]}))[
        "t"
    ] == "ack"
    await ann.knows("door", "open", False)


@pytest.mark.parametrize(
    ("item", "code", "words"),
    [
        ({"e": "dragon", "k": "pos", "v": [1, 1]}, "forbidden", "no entity 'dragon'"),
        ({"e": "door", "k": "colour", "v": "red"}, "forbidden", "it has lock, open, pos"),
        ({"e": "door", "k": "lock", "v": "open"}, "forbidden", "server"),
        ({"e": "door", "k": "pos", "v": [2, 2]}, "forbidden", "server"),
        ({"e": "bob", "k": "pos", "v": [2, 2]}, "forbidden", "owner"),
        ({"e": "mira", "k": "pos", "v": [2, 2]}, "forbidden", "server"),
        ({"e": "lantern", "k": "lit", "v": False}, "forbidden", "owner"),
        ({"e": "ann", "k": "mood", "v": 1}, "forbidden", "it has pos, pose"),
        ({"e": "ann", "k": "pos", "v": [101, 2]}, "bad_field", "[0, 0] to [100, 100]"),
        ({"e": "ann", "k": "pos", "v": "here"}, "bad_field", "[x, y]"),
        ({"e": "ann", "k": "pos", "v": [True, 1]}, "bad_field", "[x, y]"),
        ({"e": "ann", "k": "pos", "v": [1e300, 1]}, "bad_field", "[x, y]"),
        ({"e": "ann", "k": "pose", "v": "x" * 2000}, "too_large", "ann.pose"),
        ({"e": "ann", "k": "pose"}, "bad_field", "v"),
        ({"e": "a b", "k": "pose", "v": 1}, "bad_field", "e"),
    ],
)
async def test_what_may_not_be_is_refused_with_what_to_do_and_nothing_of_it_happens(
    server: GameServer, item: dict[str, Any], code: str, words: str
) -> None:
    ann, bob = await Walker.enter(server), await Walker.enter(server, "bob")
    right = {"e": "door", "k": "open", "v": True}
    error = await ann.ask("state.set", {"items": [right, item]})
    assert (error["t"], error["d"]["code"]) == ("error", code)
    assert words in error["d"]["msg"]
    await bob.put("bob", "pose", "waits")
    await bob.knows("bob", "pose", "waits")
    assert bob.state == {**BEGINNING, ("bob", "pose"): "waits"}


async def test_an_owner_may_and_observers_may_nothing(server: GameServer) -> None:
    ann, bob = await Walker.enter(server), await Walker.enter(server, "bob")
    await ann.put("lantern", "owner", "ann")
    assert (await bob.put("lantern", "lit", False))["d"]["code"] == "forbidden"
    assert (await ann.put("lantern", "lit", False))["t"] == "ack"
    eve = await Walker.enter(server, "eve", role="observer")
    assert (await eve.put("door", "open", True))["d"]["code"] == "forbidden"


async def test_a_player_with_the_id_of_a_thing_or_an_npc_owns_neither(server: GameServer) -> None:
    for name in ("mira", "door"):
        thief = await Walker.enter(server, name)
        assert (await thief.put(name, "pos", [5, 5]))["d"]["code"] == "forbidden"
        await thief.ask("scene.leave")
        late = await Walker.enter(server, f"after-{name}")
        assert late.state == BEGINNING


async def test_keys_of_the_games_server_write_everything_that_exists(tmp_path: Path) -> None:
    keys = {"game": ("play,events", "g" * 40), "player": ("play", "p" * 40)}
    lines = [key_line(name, key, scopes.split(",")) for name, (scopes, key) in keys.items()]
    (tmp_path / "keys").write_text("\n".join(lines), "utf-8")
    auth = {"keys_file": str(tmp_path / "keys")}
    async with serving(tmp_path, ["Hm."], pack=THINGS, state=QUICK, auth=auth) as server:
        for name, (_, key) in keys.items():
            walker = await Walker.dial(server, name)
            walker.begin()
            await walker.identify(caps=CAPS, auth={"kind": "key", "token": key})
            walker.stream = (await walker.ask("scene.join", {"scene": SCENE}))["st"]
            for e, k, v in (("mira", "pos", [5, 5]), ("door", "lock", None)):
                code = (await walker.put(e, k, v))["d"].get("code")
                assert code == (None if name == "game" else "forbidden")
            assert (await walker.put("dragon", "pos", [1, 1]))["d"]["code"] == "forbidden"
        await walker.knows("mira", "pos", [5, 5])
        await walker.knows("door", "lock", None)


async def test_too_many_changes_are_refused_with_a_time_to_wait(tmp_path: Path) -> None:
    limits = {"states_per_s": 0.5, "states_burst": 2}
    async with serving(tmp_path, ["Hm."], pack=THINGS, state=QUICK, limits=limits) as server:
        ann, bob = await Walker.enter(server), await Walker.enter(server, "bob")
        for n in range(2):
            assert (await ann.put("ann", "pose", n))["t"] == "ack"
        error = (await ann.put("ann", "pose", 2))["d"]
        assert error["code"] == "rate_limited"
        assert 0 < error["retry_ms"] <= 2000
        assert (await bob.put("bob", "pose", 1))["t"] == "ack", "each has a bucket of its own"
        many = {"items": [{"e": "bob", "k": "pose", "v": n} for n in range(3)]}
        error = (await bob.ask("state.set", many))["d"]
        assert (error["code"], error["limit"], error["actual"]) == ("too_large", 2, 3)


async def test_what_players_should_not_have_typed_is_taken_out(server: GameServer) -> None:
    ann = await Walker.enter(server)
    await ann.put("ann", "pose", "mail ann@example.com")
    await ann.until(lambda: ("ann", "pose") in ann.state)
    assert "example.com" not in ann.state["ann", "pose"]


async def test_a_session_goes_on_after_the_change_it_has_got_to(server: GameServer) -> None:
    ann, bob = await Walker.enter(server), await Walker.enter(server, "bob")
    await ann.put("door", "open", True)
    await ann.knows("door", "open", True)
    for cursor, full in (
        ({"rev": ann.rev, "ep": ann.ep}, False),
        ({"rev": ann.rev, "ep": ann.ep - 1}, True),
        ({"rev": ann.rev + 1000, "ep": ann.ep}, True),
        ({}, True),
    ):
        ann.socket.transport.abort()
        await bob.put("bob", "pose", str(cursor))
        await bob.knows("bob", "pose", str(cursor))
        again = await Walker.dial(server)
        again.begin()
        if not full:
            again.state = dict(ann.state)
        resume = {
            "session": ann.log[1]["d"]["session"],
            "token": next(m for m in reversed(ann.log) if m["t"] == "welcome")["d"]["resume_token"],
            "cursors": [{"st": SCENE, "s": 0, **cursor}],
        }
        assert (await again.identify(caps=CAPS, resume=resume))["d"]["resumed"]
        await again.knows("bob", "pose", str(cursor))
        assert bool(again.deltas[0]["d"].get("full")) is full
        assert again.state == bob.state
        again.stream, again.log = SCENE, [*ann.log[:2], *again.log]
        ann = again


async def test_who_reads_slowly_gets_fewer_and_newer_values(tmp_path: Path) -> None:
    sections = {
        "guards": {"stall_s": 60.0, "write_bytes": 1024, "send_buffer_bytes": 2048},
        "limits": {"states_per_s": 1000.0, "states_burst": 1000},
        "state": QUICK,
    }
    async with serving(tmp_path, ["Hm."], pack=THINGS, **sections) as server:
        ann = await Walker.enter(server)
        bob = await Walker.dial(server, "bob", max_queue=1, sock=narrow(server))
        bob.begin()
        await bob.identify(caps=CAPS)
        await bob.ask("scene.join", {"scene": SCENE})
        await bob.until(lambda: bool(bob.deltas))
        bob.socket.transport.pause_reading()
        await ann.flood(80)
        for n in range(300):
            await ann.put("ann", "pose", f"{n} " + "x" * 900)
        await ann.until(lambda: ann.state.get(("ann", "pose"), "").startswith("299 "))
        bob.socket.transport.resume_reading()
        await bob.until(lambda: bob.state.get(("ann", "pose"), "").startswith("299 "))
        assert bob.state == ann.state
        told = sum(len(delta["d"]["items"]) for delta in bob.deltas)
        assert told < len(BEGINNING) + 100, "what was passed over is not told any more"


async def test_a_long_state_comes_in_several_messages_below_8_kib(tmp_path: Path) -> None:
    things = [{"id": f"box{n}", "keys": {"text": f"{n} " + "x" * 900}} for n in range(40)]
    pack = {"entities": things}
    async with serving(tmp_path, ["Hm."], pack=pack, state=QUICK) as server:
        ann = await Walker.enter(server)
        await ann.until(lambda: len(ann.state) == 40)
        assert [bool(delta["d"].get("full")) for delta in ann.deltas] == [True] + [False] * (
            len(ann.deltas) - 1
        )
        assert len(ann.deltas) >= 5


async def test_changes_are_gathered_for_a_pace(tmp_path: Path) -> None:
    async with serving(tmp_path, ["Hm."], pack=THINGS, state={"pace_ms": 600_000}) as server:
        ann = await Walker.enter(server)
        await ann.put("ann", "pose", 0)
        await ann.knows("ann", "pose", 0)  # the first one after a pause goes at once
        for n in range(1, 9):
            await ann.put("ann", "pose", n)
        await ann.ask("heartbeat")
        assert ann.state["ann", "pose"] == 0
        late = await Walker.enter(server, "bob")
        assert late.state["ann", "pose"] == 8, "a newcomer is told how things are now"


async def test_all_listeners_share_one_message(server: GameServer) -> None:
    walkers = [await Walker.enter(server, f"w{n}") for n in range(12)]
    actor = server._world.actors[SCENE]
    made: list[int] = []
    message = actor.state.message

    def counted(*args: Any) -> Any:
        made.append(id(message(*args)))
        return message(*args)

    actor.state.message = counted  # type: ignore[method-assign]
    await walkers[0].put("door", "open", True)
    await asyncio.gather(*(walker.knows("door", "open", True) for walker in walkers))
    assert len(made) == len(walkers)
    assert len(set(made)) == 1
