"""Space and things are read as written, and each mistake is named with what would be right."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc.roster import load_roster
from scenes.document import PackError
from scenes.entities import Entity, Told
from scenes.pack import load_pack
from scenes.space import Bounds, as_position, distance
from tests.scenes.packs import MIRA, SCENE, write_pack

THINGS = """\
bounds: [[10, 0], [0, 5.5]]
sight: 12
hearing: 6.5
players:
  at: [1, 2]
  keys: [pose]
entities:
  - id: door
    at: [0, 4]
    keys: {open: false, holder:}
    write: {open: player, holder: owner}
    told:
      - with: {open: [true, ajar]}
        text: The door is open.
  - id: bell
    keys: {rings: {how: [1, 2]}}
"""


def test_surroundings_are_read_as_written(tmp_path: Path) -> None:
    around = load_pack(write_pack(tmp_path, scene=SCENE + THINGS)).surroundings
    assert around.bounds == Bounds((0, 0), (10, 5.5))
    assert (around.sight, around.hearing, around.entry) == (12, 6.5, (1, 2))
    assert around.player_keys == {"pose"}
    told = Told((("open", (True, "ajar")),), "The door is open.")
    writers = {"pos": "server", "open": "player", "holder": "owner"}
    assert list(around.entities.values()) == [
        Entity("door", {"pos": [0, 4], "open": False}, writers, (told,)),
        Entity("bell", {"rings": {"how": [1, 2]}}, {"pos": "server", "rings": "server"}),
    ]
    assert around.names() == {"door.pos", "door.open", "door.holder", "bell.pos", "bell.rings"}
    for value, holds in ((True, True), ("ajar", True), (False, False), (1, False)):
        assert told.holds("door", {"door.open": value}) is holds


def test_a_scene_without_any_of_it_is_everywhere_and_empty(tmp_path: Path) -> None:
    around = load_pack(write_pack(tmp_path)).surroundings
    assert (around.bounds, around.sight, around.hearing, around.entry) == (None, 0, 0, None)
    assert not around.entities


@pytest.mark.parametrize(
    ("old", "new", "field", "problem"),
    [
        ("[[10, 0], [0, 5.5]]", "[[10, 0]]", "bounds", "two corners"),
        ("[[10, 0], [0, 5.5]]", "[[10, 0], [0, 5.5, 1]]", "bounds", "two corners"),
        ("[[10, 0], [0, 5.5]]", "5", "bounds", "two corners"),
        ("sight: 12", "sight: 0", "sight", "above 0"),
        ("sight: 12", "sight: far", "sight", "above 0"),
        ("hearing: 6.5", "hearing: .inf", "hearing", "number"),
        ("at: [1, 2]", "at: [11, 2]", r"players\.at", "outside the bounds"),
        ("at: [1, 2]", "at: [1]", r"players\.at", r"\[x, y\]"),
        ("[pose]", "[pos]", r"players\.keys\[0\]", "there already"),
        ("[pose]", "[a, a]", r"players\.keys\[1\]", "there already"),
        ("at: [0, 4]", "at: [0, true]", r"entities\[0\]\.at", r"\[x, y\]"),
        ("id: bell", "id: door", r"entities\[1\]\.id", "another entry"),
        ("id: bell", "id: a/b", r"entities\[1\]\.id", "must be 1 to 64"),
        ("open: false,", "pos: 1, open: false,", r"keys\.pos", "in the field at"),
        ("open: false,", "a b: 1, open: false,", r"keys\.a b", "must be 1 to 64"),
        ("rings: {how: [1, 2]}", f"rings: {'x' * 1100}", r"keys\.rings", "longer than 1024"),
        ("{open: player,", "{shut: player,", r"write\.shut", "none of its keys, which are pos"),
        ("{open: player,", "{open: king,", r"write\.open", "player, owner, server"),
        ("with: {open: [true, ajar]}", "with: {shut: true}", r"told\[0\]\.with", "none of its"),
        ("with: {open: [true, ajar]}", "with: {}", r"told\[0\]\.with", "must name keys"),
        ("text: The door is open.", "say: it", r"told\[0\]\.text", "is missing"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, field: str, problem: str) -> None:
    assert old in THINGS
    folder = write_pack(tmp_path, scene=SCENE + THINGS.replace(old, new, 1))
    with pytest.raises(PackError, match=rf"(?s){field}.*{problem}"):
        load_pack(folder)


@pytest.mark.parametrize(
    ("scene", "mira", "field"),
    [
        (THINGS, MIRA + "at: [11, 1]\n", "at"),
        (THINGS, MIRA + "at: here\n", "at"),
        (THINGS.replace("id: bell", "id: mira"), MIRA, "id"),
    ],
)
def test_people_stand_within_bounds_and_are_no_things(
    tmp_path: Path, scene: str, mira: str, field: str
) -> None:
    pack = load_pack(write_pack(tmp_path, scene=SCENE + scene, mira=mira))
    with pytest.raises(PackError, match=f": {field}: "):
        load_roster(pack)


def test_where_somebody_stands_is_known_without_reading_who_it_is(tmp_path: Path) -> None:
    folder = write_pack(tmp_path, scene=SCENE, mira=MIRA + "at: [4, 1.5]\n")
    people = load_roster(load_pack(folder))
    assert (people["mira"].at, people["harn"].at) == ((4, 1.5), None)
    assert people.persona("mira").at == (4, 1.5)


NUMBERS = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6))


@given(st.lists(NUMBERS, min_size=2, max_size=3))
def test_a_position_is_kept_to_a_thousandth(value: list[float]) -> None:
    at = as_position(value)
    assert len(at) == len(value)
    assert all(abs(kept - given) <= 0.0005001 for kept, given in zip(at, value, strict=True))
    assert as_position(list(at)) == at


@given(st.one_of(st.none(), st.text(), st.lists(st.one_of(st.none(), st.booleans(), NUMBERS))))
def test_nothing_else_is_a_position(value: Any) -> None:
    right = (
        isinstance(value, list)
        and len(value) in (2, 3)
        and all(isinstance(part, (int, float)) and not isinstance(part, bool) for part in value)
    )
    if not right:
        with pytest.raises(ValueError, match=r"must be \[x, y\]"):
            as_position(value)


@pytest.mark.parametrize("part", [math.nan, math.inf, 1e300, 10**400, -1_000_001])
def test_numbers_that_are_nowhere_are_refused(part: float) -> None:
    with pytest.raises(ValueError, match="within"):
        as_position([0, part])


def test_distances_are_flat_where_one_has_no_height() -> None:
    assert distance((0, 0), (3, 4)) == 5
    assert distance((0, 0, 0), (2, 3, 6)) == 7
    assert distance((0, 0), (0, 0, 2)) == 2
