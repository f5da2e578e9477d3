"""What the console shows of an NPC is what the NPC goes by."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from gameserver.game import GameServer
from gameserver.sheet import Sheet
from gameserver.tenants import EVERYTHING
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving
from tests.gameserver.test_feelings import REACTIONS


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[GameServer]:
    pack = {"reactions": REACTIONS, "events": ["thunder", "gift"]}
    async with serving(tmp_path, ["Hm."], pack=pack, inspect=True) as server:
        yield server


def sheet(server: GameServer, npc: str = "mira") -> Sheet:
    found = server.inspector.sheet(SCENE, npc, EVERYTHING)
    assert found is not None
    return found


async def test_an_npc_nobody_needed_yet_is_its_file(server: GameServer) -> None:
    await Player.enter(server)
    (scene,) = server.inspector.overview(EVERYTHING).scenes
    assert (scene.id, [player.id for player in scene.players]) == (SCENE, ["ann"])
    assert [(npc.id, npc.awake) for npc in scene.npcs] == [("mira", False), ("harn", False)]
    harn = sheet(server, "harn")
    assert harn.persona.knows == ["The mill burns."]
    assert harn.persona.reactions == ["thunder", "gift", "rude"]
    assert harn.prompts == harn.lines == harn.relations == []
    assert server.inspector.sheet(SCENE, "nobody", EVERYTHING) is None
    assert server.inspector.sheet("nowhere", "mira", EVERYTHING) is None


async def test_the_prompt_is_the_one_that_was_sent_in_its_parts(server: GameServer) -> None:
    ann = await Player.enter(server)
    turn = (await ann.hear("You rat!"))["turn"]
    (prompt,) = sheet(server).prompts or []
    sent = server.prompts[turn]
    assert (prompt.turn, prompt.tokens) == (turn, len(sent.token_ids))
    assert [part.name for part in prompt.parts] == ["scene", "persona", "turn"]
    assert "".join(part.text for part in prompt.parts) == sent.text
    assert sum(part.tokens for part in prompt.parts) == prompt.tokens
    assert "An inn at a ford." in prompt.parts[0].text
    assert "You are Mira" in prompt.parts[1].text
    assert "(Mira feels: angry, wary of ann)" in prompt.parts[2].text


async def test_feelings_are_shown_with_where_they_come_from(server: GameServer) -> None:
    ann, bob = await Player.enter(server), await Player.enter(server, "bob")
    await bob.hear("Good evening.")
    await ann.hear("You rat!", to=["mira"])
    await bob.ask("scene.leave", {"scene": SCENE}, st=None)
    seen = sheet(server)
    (relation,) = seen.relations
    assert (relation.player, relation.here, relation.trust, relation.fear) == ("ann", True, -30, 0)
    assert (relation.seen.trust, relation.caused) == (0, ["rude"])
    assert relation.told == ["wary of ann"]
    assert [point.trust for point in relation.history] == [0, -30]
    assert (seen.mood.name, seen.mood.history) == ("neutral", [])
    await ann.ask("world.event", {"name": "thunder"})
    mood = sheet(server).mood
    assert (mood.name, mood.history[-1].name) == ("afraid", "afraid")


async def test_what_was_said_is_shown_with_who_heard_it(server: GameServer) -> None:
    ann = await Player.enter(server)
    await ann.hear("Hello.")
    await ann.hear("Psst.", to=["mira"])
    lines = [(line.kind, line.text, line.to) for line in sheet(server).lines]
    assert lines == [
        ("player", "Hello.", None),
        ("npc", "Hm.", None),
        ("player", "Psst.", ["ann"]),
        ("npc", "Hm.", ["ann"]),
    ]


async def test_without_inspection_no_prompt_is_kept(tmp_path: Path) -> None:
    async with serving(tmp_path, ["Hm."]) as server:
        ann = await Player.enter(server)
        await ann.hear("Hello.")
        assert sheet(server).prompts is None
