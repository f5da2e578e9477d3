"""News wake NPCs for those who are there, not too often, and never instead of being known."""

from pathlib import Path
from typing import Any

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving, until

REPLIES = ["Close the shutters!", "The stew is hot.", "Mind the cat."]
THUNDER = "Thunder rolls over the ford."


def pack(**news: Any) -> dict[str, Any]:
    return {"news": [{"event": "thunder", "text": THUNDER, **news}]}


def known(server: GameServer, npc: str) -> list[str]:
    """What an NPC has heard from the world."""
    lines = server._world.actors[SCENE].ensemble.floor(npc).dialogue.newest(50)
    return [line.text for line in lines if line.kind == "observed"]


async def test_everybody_knows_and_one_speaks_of_what_a_players_game_raises(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, REPLIES, pack=pack(wakes="mira")) as server:
        ann = await Player.enter(server)
        await ann.ask("world.event", {"name": "thunder"})
        start = (await ann.get("npc.turn.start"))["d"]
        assert (start["npc"], start["to"]) == ("mira", [])
        assert (await ann.get("npc.turn.end"))["d"]["text"] == REPLIES[0]
        states = [m["d"] for m in ann.log if m["t"] == "npc.state"]
        assert {state["attention"] for state in states} <= {None}
        assert known(server, "mira") == known(server, "harn") == [THUNDER]


async def test_who_was_woken_is_left_in_peace_for_a_while_but_told(tmp_path: Path) -> None:
    async with serving(tmp_path, REPLIES, pack=pack(wakes="mira", cooldown_s=60)) as server:
        ann = await Player.enter(server)
        for _ in range(3):
            await ann.ask("world.event", {"name": "thunder"})
        await ann.get("npc.turn.end")
        await ann.quiet()
        assert ann.types().count("npc.turn.start") == 1
        assert known(server, "mira") == [THUNDER] * 3
        assert len(known(server, "harn")) == 3


async def test_nobody_speaks_in_an_empty_room_and_news_of_private_things_are_none(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, REPLIES, pack=pack(wakes="mira")) as server:
        ann = await Player.enter(server)
        await ann.ask("world.event", {"name": "thunder", "scope": "player"})
        assert known(server, "mira") == []
        await ann.ask("scene.leave", {"scene": SCENE})
        actor = server._world.actors[SCENE]
        actor.happenings.happen("thunder", None)
        assert known(server, "mira") == [THUNDER]
        assert not server._world.is_speaking


async def test_an_npc_that_may_not_speak_knows_all_the_same(tmp_path: Path) -> None:
    budget = {"npc": {"turns_per_minute": 1}}
    news = pack(wakes="mira", cooldown_s=0)
    async with serving(tmp_path, REPLIES, pack=news, budgets=budget) as server:
        ann = await Player.enter(server)
        await ann.hear("Hello.")
        await ann.ask("world.event", {"name": "thunder"})
        await ann.quiet()
        assert ann.types().count("npc.turn.start") == 1
        await until(lambda: known(server, "mira") == [THUNDER])


async def test_facts_are_kept_with_the_story_and_go_back_to_what_the_author_wrote(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, REPLIES, pack=pack()) as server:
        await Player.enter(server)
        actor = server._world.actors[SCENE]
        actor.happenings.become("weather", "snow")
        kept = actor.plot.story.snapshot()
        actor.happenings.become("weather", None)
        assert actor.plot.story.world() == {"weather": "rain"}
        actor.plot.story.restore(kept)
        assert actor.plot.story.world() == {"weather": "snow"}
