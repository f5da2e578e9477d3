"""Whatever happens in whatever order: quests move along their steps only, end once, stay apart, and
go on after a restart from where they were.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npc.notes import Moment
from npc.persona import Persona
from npc.quests.book import SHARED, Change, QuestBook
from npc.quests.quest import Quest
from npc.quests.source import QuestSource
from npc.story import Story
from npc.transcript import Line
from scenes.actions import Action
from scenes.conditions import WorldState
from scenes.reactions import Happening
from tests.npc.quests.packs import QUEST, read, write

PLAYERS = ("ann", "bob")
ACCEPTED = Happening("event", "accepted")
HOME = Happening("event", "home", {"alive": True})
DEAD = Happening("event", "home", {"alive": False})
HAPPENINGS = (
    *(ACCEPTED, HOME, DEAD, Happening("event", "home", {"alive": 1}), None),
    Happening("action", "start_quest", {"npc": "harn", "ok": True}),
    Happening("action", "start_quest", {"npc": "harn", "ok": False}),
    Happening("action", "start_quest", {"npc": "mira", "ok": True}),
    Happening("said", "accepted"),
)
NOWHERE = WorldState()
WITH_WHISTLE = WorldState(items={"whistle": 2})


@pytest.fixture(scope="module")
def quest(tmp_path_factory: pytest.TempPathFactory) -> Quest:
    """The sample quest."""
    return read(write(tmp_path_factory.mktemp("pack")))["mill"]


def book_of(quest: Quest) -> QuestBook:
    return QuestBook({quest.id: quest})


def stages(changes: list[Change]) -> list[str]:
    return [change.stage.id for change in changes]


def test_steps_are_taken_in_order_of_the_file_and_only_if_their_conditions_hold(
    quest: Quest,
) -> None:
    book = book_of(quest)
    assert stages(book.enter("ann", 0)) == ["asked"]
    assert stages(book.happened(HOME, "ann", lambda _: WITH_WHISTLE, 1)) == []
    assert stages(book.happened(ACCEPTED, "ann", lambda _: NOWHERE, 1)) == ["gone"]
    with_whistle = book_of(quest)
    with_whistle.restore(book.snapshot())
    assert stages(book.happened(HOME, "ann", lambda _: NOWHERE, 2)) == ["lost"]
    assert stages(with_whistle.happened(HOME, "ann", lambda _: WITH_WHISTLE, 2)) == ["home"]


def test_an_action_counts_if_it_worked_and_the_right_one_did_it(quest: Quest) -> None:
    for npc, ok, moved in (("harn", True, ["gone"]), ("harn", False, []), ("mira", True, [])):
        book = book_of(quest)
        book.enter("ann", 0)
        act = Happening("action", "start_quest", {"npc": npc, "ok": ok})
        assert stages(book.happened(act, "ann", lambda _: NOWHERE, 1)) == moved


def test_time_moves_what_has_a_time_and_nothing_else(quest: Quest) -> None:
    book = book_of(quest)
    book.enter("ann", 0)
    assert book.tick(lambda _: NOWHERE, 10_000) == []
    book.happened(ACCEPTED, "ann", lambda _: NOWHERE, 10_000)
    assert book.tick(lambda _: NOWHERE, 10_059) == []
    (change,) = book.tick(lambda _: NOWHERE, 10_060)
    assert (change.stage.id, change.before, change.player) == ("lost", "gone", "")


_MOVES = st.tuples(
    st.sampled_from(PLAYERS),
    st.sampled_from([*HAPPENINGS, "enter", "leave", "restart", "tick"]),
    st.booleans(),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(_MOVES, max_size=25), st.booleans())
def test_quests_move_along_their_steps_and_stay_apart(
    quest: Quest, moves: list[tuple[str, Any, bool]], shared: bool
) -> None:
    quest = replace(quest, shared=shared)
    book, now = book_of(quest), 0.0
    expected = dict.fromkeys(PLAYERS, quest.start)
    for player, move, whistle in moves:
        now += 25
        before = dict(expected)

        def state(who: str, whistle: bool = whistle) -> WorldState:
            return WITH_WHISTLE if whistle else NOWHERE

        changes: list[Change] = []
        match move:
            case "enter":
                changes = book.enter(player, now)
            case "leave":
                book.leave(player)
            case "restart":
                kept = json.loads(json.dumps(book.snapshot()))
                book = book_of(quest)
                book.restore(kept)
            case "tick":
                changes = book.tick(state, now)
            case _:
                changes = book.happened(move, player, state, now)
        for change in changes:
            for who in PLAYERS if change.owner == SHARED else (change.owner,):
                expected[who] = change.stage.id
            if change.before:
                assert change.stage.id in quest.stages[change.before].leads_to()
                assert not quest.stages[change.before].ending
        if move != "tick":  # what one does moves nobody else's quest
            others = [who for who in PLAYERS if who != player and not shared]
            assert all(expected[who] == before[who] for who in others)
        for who in PLAYERS:
            assert book.stages(who) == {"mill": expected[who]}
    if shared:
        assert len(set(expected.values())) == 1


def test_quests_that_never_moved_are_not_kept_for_those_who_leave(quest: Quest) -> None:
    book = book_of(quest)
    for number in range(100):
        book.enter(f"p{number}", 0)
        book.leave(f"p{number}")
    assert book.snapshot() == {"places": []}


def test_a_new_version_keeps_stages_that_it_still_has(tmp_path: Path, quest: Quest) -> None:
    book = book_of(quest)
    for player in PLAYERS:
        book.enter(player, 0)
    book.happened(ACCEPTED, "ann", lambda _: NOWHERE, 0)
    same = replace(quest, title="Another Title")
    assert book.adopt({"mill": same}, 1) == []
    assert book.stages("ann") == {"mill": "gone"}
    renamed = read(write(tmp_path, QUEST.replace("gone", "away")))
    (change,) = book.adopt(renamed, 2)
    assert (change.owner, change.stage.id) == ("ann", "asked")
    assert book.adopt({}, 3) == []
    assert book.stages("ann") == {}


@pytest.mark.parametrize("kept", [{}, {"places": 3}, {"places": [["mill"]]}])
def test_what_is_no_snapshot_changes_nothing(quest: Quest, kept: Any) -> None:
    book = book_of(quest)
    book.enter("ann", 0)
    before = book.snapshot()
    with pytest.raises(msgspec.ValidationError):
        book.restore(kept)
    assert book.snapshot() == before


def test_an_npc_knows_and_may_do_what_the_stage_of_the_player_says(quest: Quest) -> None:
    book = book_of(quest)
    for player in PLAYERS:
        book.enter(player, 0)
    book.happened(ACCEPTED, "ann", lambda _: NOWHERE, 0)

    def told(npc: str, player: str) -> list[str]:
        line = Line("m", "player", player, player, npc, "Hello?", 0)
        persona = Persona(npc, npc, "host", "", "")
        moment = Moment("t", persona, line, None, (), frozenset(PLAYERS), NOWHERE)
        return [note.text for note in QuestSource(npc, book).notes(moment)]

    assert told("harn", "bob") == ["Nobody has gone."]
    assert told("harn", "ann") == ["Somebody is up there."]
    assert told("mira", "bob") == []
    assert told("mira", "ann") == ["Somebody is up there."]
    assert book.allows("harn", "bob", "start_quest")
    assert not book.allows("harn", "ann", "start_quest")
    assert book.allows("harn", "ann", "give_item"), "no quest speaks of it"
    assert book.concerns("harn", "ann")
    book.happened(DEAD, "ann", lambda _: NOWHERE, 0)
    assert not book.concerns("harn", "ann")


class _Script:
    """A pack of one quest, and one NPC who can do two things."""

    def __init__(self, quest: Quest) -> None:
        self.meta: Mapping[str, Any] = {"weather": "rain"}
        self.quests = {quest.id: quest}
        self.related = ("harn",)

    def actions(self, npc: str) -> tuple[Action, ...]:
        return (Action("start_quest", "gives a task"), Action("wave", "waves", cooldown_s=30))


def test_a_story_knows_how_things_are_for_each_player(quest: Quest) -> None:
    now = [100.0]
    story = Story(_Script(quest), lambda npc, player: {"trust": 9.0}, lambda: now[0])
    for player in PLAYERS:
        story.enter(player)
    story.tell("ann", {"item.whistle": 1, "brave": True, "list": [1]})
    state = story.state("mira", "ann")
    assert state == WorldState(
        {"weather": "rain"},
        {"mill": "asked"},
        {"brave": True},
        {"whistle": 1.0},
        {"harn.trust": 9.0, "trust": 9.0},
    )
    story.tell("ann", {"brave": None}, npc="harn")
    assert story.state("mira", "ann").flags == {"brave": True}
    story.tell("ann", {"brave": None})
    assert story.state("mira", "ann").flags == {}
    assert story.state("mira", "bob").items == {}


def test_a_story_goes_on_after_a_restart_and_forgets_who_asks_for_it(quest: Quest) -> None:
    story = Story(_Script(quest), lambda npc, player: {}, lambda: 0.0)
    for player in PLAYERS:
        story.enter(player)
        story.tell(player, {"item.whistle": 1})
        story.happened(ACCEPTED, player)
    kept = json.loads(json.dumps(story.snapshot()))
    again = Story(_Script(quest), lambda npc, player: {}, lambda: 0.0)
    again.restore(kept)
    assert again.state("harn", "ann") == story.state("harn", "ann")
    assert stages(again.happened(HOME, "ann")) == ["home"]
    again.forget("bob")
    assert "bob" not in json.dumps(again.snapshot())
    with pytest.raises(msgspec.ValidationError):
        again.restore({"quests": {"places": []}})
    assert again.state("harn", "ann").items == {"whistle": 1.0}
