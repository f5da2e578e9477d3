"""A turn waits a moment for what its line brings to mind, in its place in the queue, and no longer;
memory hears what players hear.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from gameserver.game import GameServer
from npc.memory.memories import Memories
from npc.memory.source import MemorySource
from npc.notes import Moment, Note, NoteSource
from npc.transcript import Audience, Line
from tests.gameserver.player import Player
from tests.gameserver.stage import serving
from tests.npc.memory.stage import remembering

REPLY = "The bridge is gone."


class Pensive(NoteSource):
    """Thinks about every line until it is let."""

    tokens = 100

    def __init__(self) -> None:
        self.thoughts: list[asyncio.Future[None]] = []
        self.urgent: list[bool] = []
        self.answered: list[tuple[str, bool]] = []

    def prepare(
        self, line: Line, audience: Audience, *, urgent: bool
    ) -> asyncio.Future[None] | None:
        thought = asyncio.get_running_loop().create_future()
        self.thoughts.append(thought)
        self.urgent.append(urgent)
        return None if urgent else thought

    def notes(self, moment: Moment) -> list[Note]:
        self.answered.append((moment.line.text, self.thoughts[0].done()))
        return [Note("Something.")]


@asynccontextmanager
async def pensive(folder: Path, wait_ms: int) -> AsyncIterator[tuple[GameServer, Pensive]]:
    mind = Pensive()
    settings = {"notes_wait_ms": wait_ms}
    async with serving(
        folder, [REPLY], sources=[lambda _: mind], reply_settings=settings
    ) as server:
        yield server, mind


async def test_a_line_waits_for_its_notes_and_the_next_one_behind_it(tmp_path: Path) -> None:
    async with pensive(tmp_path, 1000) as (server, mind):
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        assert (await ann.say("First."))["d"]["queue_pos"] == 0
        assert (await bob.say("Second."))["d"]["queue_pos"] == 1
        mind.thoughts[1].set_result(None)
        await bob.ask("heartbeat")
        assert mind.answered == []
        mind.thoughts[0].set_result(None)
        for text in ("First.", "Second."):
            assert (await bob.get("player.said"))["d"]["text"] == text
        for _ in range(2):
            assert (await ann.get("npc.turn.end"))["d"]["text"] == REPLY
        assert mind.answered == [("First.", True), ("Second.", True)]


async def test_a_line_does_not_wait_longer_than_it_may(tmp_path: Path) -> None:
    async with pensive(tmp_path, 1) as (server, mind):
        ann = await Player.enter(server)
        assert (await ann.hear("Well?"))["text"] == REPLY
        assert mind.answered == [("Well?", False)]
    async with pensive(tmp_path / "0", 0) as (server, mind):
        ann = await Player.enter(server)
        assert (await ann.hear("Well?"))["text"] == REPLY


async def test_a_quest_giver_does_not_wait_at_all(tmp_path: Path) -> None:
    async with pensive(tmp_path, 1000) as (server, mind):
        ann = await Player.enter(server)
        assert (await ann.hear("Captain?", npc="harn"))["text"] == REPLY
        assert (mind.urgent, mind.answered) == ([True], [("Captain?", False)])


async def test_whoever_leaves_while_a_line_waits_is_not_answered(tmp_path: Path) -> None:
    async with pensive(tmp_path, 1000) as (server, mind):
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        await ann.say("First.")
        await ann.ask("scene.leave")
        mind.thoughts[0].set_result(None)
        await bob.get("presence")
        await bob.say("Second.")
        mind.thoughts[1].set_result(None)
        assert (await bob.get("npc.turn.end"))["d"]["text"] == REPLY
        assert [text for text, _ in mind.answered] == ["Second."]


async def test_one_line_of_a_player_may_wait_beside_the_one_that_is_answered_next(
    tmp_path: Path,
) -> None:
    async with pensive(tmp_path, 1000) as (server, mind):
        ann = await Player.enter(server)
        kinds = [(await ann.say(text))["t"] for text in ("One.", "Two.", "Three.")]
        assert kinds == ["say.accepted", "say.accepted", "error"]
        for thought in mind.thoughts:
            thought.set_result(None)
        for _ in range(2):
            await ann.get("npc.turn.end")


@asynccontextmanager
async def remembered(folder: Path) -> AsyncIterator[tuple[GameServer, Memories]]:
    async with remembering(distil_quiet_s=3600.0, distil_lines=64) as memories:
        sources = [partial(MemorySource, memories)]
        async with serving(folder, [REPLY], sources=sources, inspect=True) as server:
            yield server, memories


async def test_memory_holds_what_was_heard_and_who_was_there(tmp_path: Path) -> None:
    async with remembered(tmp_path) as (server, memories):
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        end = await ann.hear("I lost my ring.")
        await ann.ask("turn.heard", {"turn": end["turn"], "heard_i": 9})
        await bob.ask("scene.leave")
        await ann.hear("I keep a secret.", to=["mira"])
        await ann.ask("observe", {"npc": "mira", "text": "Ann sings.", "who": "ann"})
        await memories.written()
        lines = memories._book.lines("1", ())
        assert [(line.text, line.own) for line in lines] == [
            ("I lost my ring.", False),
            (REPLY[:10], True),
            ("I keep a secret.", False),
            (REPLY, True),
            ("Ann sings.", False),
        ]
        assert [line.present for line in lines[:2]] == [{"ann", "bob"}] * 2
        assert [(line.circle, line.present) for line in lines[2:4]] == [({"ann"}, {"ann"})] * 2
        assert {line.owner.player for line in lines} == {"ann"}
        assert {line.owner.stream for line in lines} == {"inn"}


async def test_a_forgotten_player_is_gone_from_talk_pages_and_prompts(tmp_path: Path) -> None:
    async with remembered(tmp_path) as (server, memories):
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        await ann.hear("My xylophone is purple.")
        await bob.hear("I like rain.")
        assert any("xylophone" in prompt.text for prompt in server.prompts.values())
        server.forget("ann")
        await memories.forget("ann")
        assert server.prompts == {}
        page = (await bob.ask("history.get", {"npc": "mira"}))["d"]["items"]
        assert [item["text"] for item in page] == ["I like rain.", REPLY]
        await ann.hear("Who am I?")
        (prompt,) = server.prompts.values()
        assert "xylophone" not in prompt.text and "I like rain." in prompt.text
        await memories.written()
        assert [line.text for line in memories._book.lines("player='ann' AND own=0", ())] == [
            "Who am I?"
        ]


@pytest.mark.parametrize("mode", ["speaking", "interrupted"])
async def test_who_is_forgotten_in_the_middle_of_an_answer_stays_forgotten(
    tmp_path: Path, mode: str
) -> None:
    """Neither the answer nor the lines that wait bring a player back."""
    async with remembered(tmp_path) as (server, memories):
        ann = await Player.enter(server)
        await ann.say("My horse is called Zyx.")
        await ann.say("And its saddle is blue.")
        start = await ann.get("npc.turn.start")
        await ann.get("npc.delta")
        if mode == "interrupted":
            await ann.ask("npc.interrupt", {"turn": start["d"]["turn"], "heard_i": 0})
        # On a slow machine what was interrupted may have ended: then it is forgotten as a whole.
        ended = "turns_ended_interrupted" in server.gauges()
        server.forget("ann")
        await memories.forget("ann")
        end = (await ann.get("npc.turn.end"))["d"]
        assert ended or end["kept"] == 0
        await memories.written()
        assert [line.text for line in memories._book.lines("player='ann'", ()) if line.text] == []
