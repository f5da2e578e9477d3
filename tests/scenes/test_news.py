"""News are read as written, and each mistake is named."""

from pathlib import Path

import pytest

from npc.cast import _read
from scenes.conditions import WorldState
from scenes.document import PackError
from scenes.news import News
from scenes.pack import load_pack
from scenes.reactions import Happening
from tests.scenes.packs import SCENE, write_pack

NEWS = """\
news:
  - event: storm
    with: {near: true, force: [9, 10]}
    text: A storm breaks.
    wakes: mira
    cooldown_s: 0
  - event: bell
    text: The bell rings.
"""
DOOR = "entities: [{id: door, keys: {open: false}}]\n"


def test_news_are_read_as_written(tmp_path: Path) -> None:
    storm, bell = load_pack(write_pack(tmp_path, scene=SCENE + NEWS)).news
    fields = (("near", (True,)), ("force", (9, 10)))
    assert storm == News("storm", "A storm breaks.", fields, "mira", 0)
    assert bell == News("bell", "The bell rings.")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (Happening("event", "storm", {"near": True, "force": 10, "more": 1}), True),
        (Happening("event", "storm", {"near": 1, "force": 10}), False),
        (Happening("event", "storm", {"near": True}), False),
        (Happening("event", "bell", {"near": True, "force": 9}), False),
        (Happening("quest", "storm", {"near": True, "force": 9}), False),
    ],
)
def test_news_fit_their_event_and_the_data_that_was_named(what: Happening, told: bool) -> None:
    fields = (("near", (True,)), ("force", (9, 10)))
    assert News("storm", "A storm breaks.", fields).tell_of(what, WorldState()) is told


def test_news_may_be_of_a_thing(tmp_path: Path) -> None:
    of_door = "  - {thing: door.open, with: {is: true}, text: The door opens.}\n"
    pack = load_pack(write_pack(tmp_path, scene=SCENE + DOOR + NEWS + of_door))
    opens = pack.news[-1]
    assert opens == News("door.open", "The door opens.", (("is", (True,)),), cause="thing")
    for cause, name, now, told in (
        ("thing", "door.open", True, True),
        ("thing", "door.open", False, False),
        ("thing", "gate.open", True, False),
        ("event", "door.open", True, False),
    ):
        what = Happening(cause, name, {"is": now, "was": not now})  # type: ignore[arg-type]
        assert opens.tell_of(what, WorldState()) is told


def test_news_may_wait_for_the_world_and_its_things(tmp_path: Path) -> None:
    when = "    when: {things: {door.open: true}, world: {weather: [rain, snow]}}\n"
    pack = load_pack(write_pack(tmp_path, scene=SCENE + DOOR + NEWS + when))
    what = Happening("event", "bell")
    assert pack.news[-1].name == "bell"
    for opened, weather, told in (
        (True, "snow", True),
        (False, "snow", False),
        (True, "fog", False),
    ):
        state = WorldState({"weather": weather}, things={"door.open": opened})
        assert pack.news[-1].tell_of(what, state) is told


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("event: storm", "event: a/b", r"news\[0\]\.event"),
        ("    text: The bell rings.\n", "", r"news\[1\]\.text"),
        ("cooldown_s: 0", "cooldown_s: -1", r"news\[0\]\.cooldown_s"),
        ("wakes: mira", "wake: mira", r"news\[0\]\.wake"),
        ("wakes: mira", "wakes: nobody", r"news\[0\]\.wakes"),
        ("wakes: mira", "when: {flags: {brave: true}}", r"news\[0\]\.when"),
        ("wakes: mira", "when: {quests: {robin: lost}}", r"news\[0\]: when\.quests"),
        ("wakes: mira", "when: {things: {door.shut: true}}", r"news\[0\]\.when\.things"),
        ("wakes: mira", "when: {world: {gold: 1}}", r"news\[0\]\.when\.world"),
        ("event: storm", "event: storm\n    thing: door.open", r"news\[0\]"),
        ("event: storm", "thing: door.shut", r"news\[0\]\.thing"),
        ("event: storm\n    with", "with", r"news\[0\]"),
    ],
)
def test_mistakes_in_news_are_named(tmp_path: Path, old: str, new: str, field: str) -> None:
    folder = write_pack(tmp_path, scene=SCENE + DOOR + NEWS.replace(old, new))
    with pytest.raises(PackError, match=field):
        _read(folder)
