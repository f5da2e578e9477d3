"""In a scene with `hearing`, a line and its answer reach those who are near, and nobody else."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gameserver.commands import StateWrite
from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import PEOPLE, SCENE, serving
from tests.gameserver.state.conftest import QUICK
from tests.gameserver.state.walker import THINGS, Walker

PLACES = {"mira": [10, 10], "harn": [40, 10]}
REPLY = "The stew is hot."
SECRET = "The key is under the third step."


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mira is at (10, 10), Harn at (40, 10)."""
    placed = [{**person, "at": PLACES[person["id"]]} for person in PEOPLE]
    monkeypatch.setattr("tests.gameserver.stage.PEOPLE", placed)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[GameServer]:
    """One hears ten paces far."""
    pack = {**THINGS, "hearing": 10}
    async with serving(tmp_path, [REPLY], pack=pack, state=QUICK, inspect=True) as running:
        yield running


async def stands(server: GameServer, name: str, *at: float) -> Walker:
    """A player at a place."""
    walker = await Walker.enter(server, name)
    await walker.put(name, "pos", list(at))
    return walker


def heard(player: Player) -> bool:
    """Whether a player was told anything of the secret or its answer."""
    told = json.dumps(player.log)
    return SECRET in told or REPLY in told


async def test_a_line_and_its_answer_reach_those_within_earshot_on_me(room: GameServer) -> None:
    ann, bob, cid = (
        await stands(room, "ann", 10, 12),
        await stands(room, "bob", 10, 20),
        await stands(room, "cid", 30, 12),
    )
    nowhere = await Player.enter(room, "dee")
    end = await ann.hear(SECRET)
    assert end["text"] == REPLY
    for near in (bob, nowhere):
        said = await near.get("player.said", text=SECRET)
        assert (said["st"], said["d"]["scene"], said["d"]["near"]) == ("me", SCENE, True)
        start = await near.get("npc.turn.start")
        assert start["d"]["to"] == ["ann", "bob", "dee"]
        await near.get("npc.turn.end", turn=end["turn"])
        assert near.heard(end["turn"]) == REPLY
    await cid.ask("heartbeat")
    await cid.quiet()
    assert not heard(cid)
    for player, lines in ((bob, 2), (cid, 0)):
        page = (await player.ask("history.get", {"npc": "mira"}))["d"]["items"]
        assert len(page) == lines


async def test_what_was_said_near_is_in_no_prompt_of_those_who_were_far(room: GameServer) -> None:
    ann, cid = await stands(room, "ann", 10, 12), await stands(room, "cid", 30, 12)
    await ann.hear(SECRET)
    await cid.put("cid", "pos", [10, 8])
    await ann.put("ann", "pos", [60, 60])
    end = await cid.hear("What did Ann tell you?")
    assert SECRET not in room.prompts[end["turn"]].text


async def test_where_everybody_is_near_a_line_is_public(room: GameServer) -> None:
    ann, bob = await stands(room, "ann", 10, 12), await stands(room, "bob", 10, 9)
    await ann.hear(SECRET)
    assert (await bob.get("player.said"))["st"] == SCENE


async def test_an_npc_too_far_away_is_refused_with_distance_and_radius(room: GameServer) -> None:
    ann = await stands(room, "ann", 10, 12)
    for line in ({"npc": "harn", "text": SECRET}, {"text": SECRET, "to": ["harn"]}):
        error = (await ann.ask("say", line))["d"]
        assert error["code"] == "too_far"
        assert "harn is 30.1 away and hears as far as 10" in error["msg"]
    await ann.put("ann", "pos", [38, 10])
    assert (await ann.hear("Hello?", npc="harn"))["status"] == "completed"


@pytest.mark.parametrize(
    ("at", "text", "answers"),
    [
        ([12, 10], "Hello?", "mira"),
        ([39, 10], "Hello?", "harn"),
        ([39, 10], "Where is Mira?", "harn"),  # too far to be meant
    ],
)
async def test_the_nearest_in_earshot_answers_a_line_to_nobody(
    room: GameServer, at: list[float], text: str, answers: str
) -> None:
    ann = await stands(room, "ann", *at)
    await ann.ask("say", {"text": text})
    assert (await ann.get("npc.turn.start"))["d"]["npc"] == answers


async def test_where_no_npc_is_near_players_talk_among_themselves(room: GameServer) -> None:
    ann, bob = await stands(room, "ann", 90, 90), await stands(room, "bob", 90, 89)
    cid = await stands(room, "cid", 10, 10)
    accepted = await ann.ask("say", {"text": SECRET})
    assert (accepted["t"], accepted["d"]["queue_pos"]) == ("say.accepted", 0)
    assert "npc" not in (await bob.get("player.said", text=SECRET))["d"]
    await cid.ask("heartbeat")
    assert not heard(cid)


async def test_an_npc_that_was_moved_hears_where_it_is(room: GameServer) -> None:
    """By the game's server, or over the bridge."""
    ann = await stands(room, "ann", 90, 90)
    assert (await ann.say("Hello?"))["d"]["code"] == "too_far"
    room._world.actors[SCENE].state.put([StateWrite("mira", "pos", [88, 90])])
    await ann.knows("mira", "pos", [88, 90])
    assert (await ann.hear("Hello?"))["status"] == "completed"


@pytest.mark.parametrize("pack", [THINGS, {**THINGS, "hearing": 10}])
async def test_without_hearing_or_without_positions_all_is_as_ever(
    tmp_path: Path, pack: dict[str, Any]
) -> None:
    async with serving(tmp_path, [REPLY], pack=pack, state=QUICK) as server:
        ann, bob = await Walker.enter(server), await Walker.enter(server, "bob")
        if "hearing" not in pack:
            await ann.put("ann", "pos", [0, 0])
        await bob.put("bob", "pos", [90, 90])
        await ann.hear(SECRET)
        assert (await bob.get("player.said", text=SECRET))["st"] == SCENE


async def test_a_player_with_the_id_of_an_npc_does_not_stand_where_that_is(
    room: GameServer,
) -> None:
    thief = await Walker.enter(room, "harn")
    assert (await thief.hear("Hello?", npc="mira"))["status"] == "completed"


async def test_a_greeting_is_of_somebody_near_and_for_those_who_are(tmp_path: Path) -> None:
    for entry, greeted in (([10, 12], True), ([90, 90], False)):
        pack = {**THINGS, "hearing": 10, "players": {"at": entry}}
        folder = tmp_path / str(greeted)
        async with serving(folder, [REPLY], pack=pack, state=QUICK) as server:
            bob = await stands(server, "bob", 10, 30)
            ann = await Walker.enter(server, "ann", greet=True)
            await ann.ask("heartbeat")
            starts = [m for m in ann.log if m["t"] == "npc.turn.start"]
            assert [(m["st"], m["d"]["npc"]) for m in starts] == [("me", "mira")] * greeted
            await bob.ask("heartbeat")
            assert "npc.turn.start" not in bob.types()
