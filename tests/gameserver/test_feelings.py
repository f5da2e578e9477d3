"""What NPCs feel shows: their mood to everybody, a relation to the one it is about, and no whisper
to those who did not hear it.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest_asyncio

from gameserver.game import GameServer
from gameserver.protocol import now_ms
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving

REACTIONS: list[dict[str, Any]] = [
    {"id": "thunder", "event": "thunder", "mood": "afraid", "strength": 80},
    {"id": "gift", "event": "gift", "with": {"item": "pie"}, "trust": 30, "mood": "cheerful"},
    {"id": "rude", "said": ["rat"], "trust": -30, "affection": -5, "mood": "angry"},
]


@pytest_asyncio.fixture
async def touchy(tmp_path: Path) -> AsyncIterator[GameServer]:
    """Everybody in the scene reacts to thunder, pies and rude words."""
    pack = {"reactions": REACTIONS, "events": ["thunder", "gift"]}
    async with serving(tmp_path, ["Hm."], pack=pack, inspect=True) as server:
        yield server


async def test_what_everybody_sees_moves_a_mood_that_everybody_sees(touchy: GameServer) -> None:
    ann, bob = await Player.enter(touchy), await Player.enter(touchy, "bob")
    assert [npc["mood"] for npc in ann.log[-1]["d"]["npcs"]] == ["neutral", "neutral"]
    assert "emotion" not in await ann.hear("Good evening.")
    await ann.ask("world.event", {"name": "thunder"})
    for player in (ann, bob):
        state = await player.get("npc.state", npc="mira", mood="afraid")
        assert state["st"] == SCENE
    ended = await ann.hear("What was that?")
    assert ended["emotion"]["name"] == "afraid"
    assert 0.7 < ended["emotion"]["intensity"] <= 0.8
    carl = await Player.enter(touchy, "carl")
    assert carl.log[-1]["d"]["npcs"][0]["mood"] == "afraid"


async def test_an_npc_whom_nobody_needed_yet_has_seen_it_all_the_same(touchy: GameServer) -> None:
    ann = await Player.enter(touchy)
    await ann.ask("world.event", {"name": "thunder"})
    assert (await ann.hear("Hello.", npc="harn"))["emotion"]["name"] == "afraid"


async def test_a_relation_is_told_to_the_one_it_is_about(touchy: GameServer) -> None:
    ann, bob = await Player.enter(touchy), await Player.enter(touchy, "bob")
    await ann.hear("You rat!")
    told = await ann.get("npc.relation")
    assert told["st"] == "me"
    assert told["d"] == {"scene": SCENE, "npc": "mira", "trust": -30, "affection": -5, "fear": 0}
    await ann.ask("world.event", {"name": "gift", "data": {"item": "pie", "npc": "mira"}})
    assert (await ann.get("npc.relation"))["d"]["trust"] == 0
    await bob.ask("heartbeat")
    assert "npc.relation" not in bob.types()


async def test_a_whisper_moves_a_relation_and_no_mood(touchy: GameServer) -> None:
    ann, bob = await Player.enter(touchy), await Player.enter(touchy, "bob")
    assert "emotion" not in await ann.hear("You rat!", to=["mira"])
    assert (await ann.get("npc.relation"))["d"]["trust"] == -30
    await ann.ask("world.event", {"name": "gift", "data": {"item": "pie"}, "scope": "player"})
    assert (await ann.get("npc.relation"))["d"]["trust"] == 0
    await bob.hear("Good evening.")
    moods = {message["d"]["mood"] for message in bob.log if message["t"] == "npc.state"}
    assert moods == {"neutral"}
    assert all("rat" not in prompt.text for prompt in [*touchy.prompts.values()][1:])


async def test_a_mood_dies_away_by_itself(touchy: GameServer) -> None:
    ann = await Player.enter(touchy)
    await ann.hear("Good evening.")
    await ann.ask("world.event", {"name": "thunder"})
    await ann.get("npc.state", mood="afraid")
    with mock.patch("gameserver.countenance.now_ms", return_value=now_ms() + 3_600_000):
        touchy._world.forget_idle()
        await ann.get("npc.state", mood="neutral")


async def test_a_player_who_is_forgotten_is_a_stranger_also_to_npcs_nobody_needed_yet(
    touchy: GameServer,
) -> None:
    ann = await Player.enter(touchy)
    await ann.hear("You rat!")
    await ann.ask("world.event", {"name": "gift", "data": {"item": "pie"}})
    touchy.forget("ann", None)
    await ann.hear("Hello.", npc="harn")
    for floor in touchy._world.actors[SCENE].floors.values():
        assert "ann" not in str(floor.dialogue.feelings.snapshot())
