"""Lore in a pack's files is read as written, each mistake is named, and conditions fail closed."""

from pathlib import Path
from typing import get_args

import pytest

from npc.persona import read_personas
from scenes.conditions import Condition, WorldState
from scenes.document import PackError
from scenes.lore import NEEDS, SCOPES, LoreEntry, Needs, Scope
from scenes.pack import load_pack
from tests.scenes.packs import HARN, MIRA, SCENE, write_pack

LORE = """\
lore_tokens: 120
lore:
  - id: ford
    text: The ford is deep.
    constant: true
    scope: world
  - id: watch
    text: The password is elm.
    scope: faction
    who: [watch]
    keys: [password, "Crow Hill"]
    patterns: ['bell\\w*']
    also: [night]
    also_needs: not_any
    case: true
    whole_words: false
    when:
      world: {weather: [rain, snow], open: true}
      quests: {robin: asked}
    priority: 3
    order: -1
"""
WATCHMAN = HARN + "factions: [watch]\nlore:\n  - {id: debt, text: He owes me., keys: [gold]}\n"
FIRST = SCENE.count("\n") + 1


def test_lore_is_read(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, SCENE + LORE, harn=WATCHMAN))
    ford, watch = pack.lore
    assert (pack.lore_tokens, ford.lasting, watch.lasting) == (120, True, False)
    assert ford == LoreEntry("ford", "The ford is deep.", "world", constant=True)
    assert watch == LoreEntry(
        "watch",
        "The password is elm.",
        "faction",
        ("watch",),
        ("password", "Crow Hill"),
        ("bell\\w*",),
        ("night",),
        "not_any",
        case=True,
        whole_words=False,
        when=(
            Condition("world", "weather", ("rain", "snow")),
            Condition("world", "open", (True,)),
            Condition("quests", "robin", ("asked",)),
        ),
        priority=3,
        order=-1,
    )
    harn = list(read_personas(pack))[1]
    assert harn.lore == (LoreEntry("debt", "He owes me.", "npc", keys=("gold",)),)
    assert watch.known_to("harn", harn.factions)
    assert not watch.known_to("mira", ())


def test_lore_may_lie_in_files_of_its_own(tmp_path: Path) -> None:
    write_pack(tmp_path, SCENE + "lore_files: [world.yaml]\n")
    (tmp_path / "world.yaml").write_text("lore:\n  - {id: a, text: b, constant: true}\n")
    assert [entry.id for entry in load_pack(tmp_path).lore] == ["a"]
    write_pack(tmp_path, SCENE + "lore_files: [world.yaml]\nlore: [{id: a, text: b, keys: [c]}]\n")
    with pytest.raises(PackError, match="'a' is the id of another entry"):
        load_pack(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "words"),
    [
        ("id: ford", "id: the ford", 2, "lore[0].id", "A-Z"),
        ("id: watch", "id: ford", 6, "lore[1].id", "another entry"),
        ("    text: The ford is deep.\n", "", 2, "lore[0].text", "missing"),
        ("    constant: true\n", "", 2, "lore[0].keys", "needs a key"),
        ("scope: world", "scope: moon", 5, "lore[0].scope", "world, scene, faction, npc"),
        ("scope: world", "who: [mira]", 5, "lore[0].who", "for everybody"),
        ("    who: [watch]\n", "", 6, "lore[1].who", "must list"),
        ("'bell\\w*'", "'(?=bell)'", 11, "lore[1].patterns[0]", "no RE2 pattern"),
        ("not_any", "none", 13, "lore[1].also_needs", "any, all, not_any, not_all"),
        ("priority: 3", "priority: high", 19, "lore[1].priority", "whole number"),
        ("priority: 3", "priority: true", 19, "lore[1].priority", "whole number"),
        ("{robin: asked}", "[robin]", 18, "lore[1].when.quests", "a list"),
        ("{robin: asked}", "{robin: []}", 18, "lore[1].when.quests.robin", "is empty"),
        ("lore_tokens: 120", "lore_tokens: 0", 0, "lore_tokens", "from 1 to 8000"),
        ("    case: true", "    cases: true", 14, "lore[1].cases", "did you mean case?"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, old: str, new: str, line: int, field: str, words: str
) -> None:
    assert old in LORE
    write_pack(tmp_path, SCENE + LORE.replace(old, new, 1))
    with pytest.raises(PackError) as caught:
        load_pack(tmp_path)
    assert (caught.value.line, caught.value.field) == (FIRST + line, field)
    assert words in caught.value.problem


@pytest.mark.parametrize(
    ("scope", "who"), [("npc", "nora"), ("faction", "thieves"), ("npc", "watch")]
)
def test_lore_is_for_somebody_who_is_there(tmp_path: Path, scope: str, who: str) -> None:
    entry = f"lore: [{{id: a, text: b, keys: [c], scope: {scope}, who: [{who}]}}]\n"
    pack = load_pack(write_pack(tmp_path, SCENE + entry, harn=WATCHMAN))
    with pytest.raises(PackError, match=who):
        list(read_personas(pack))


def test_an_npc_file_holds_only_its_own_lore(tmp_path: Path) -> None:
    write_pack(tmp_path, mira=MIRA + "lore: [{id: a, text: b, keys: [c], scope: world}]\n")
    with pytest.raises(PackError, match=r"lore\[0\]\.scope: unknown field"):
        list(read_personas(load_pack(tmp_path)))


def test_conditions_fail_closed_and_know_true_from_one() -> None:
    state = WorldState({"open": True, "year": 1}, {"robin": "asked"})
    assert Condition("world", "open", (True,)).holds(state)
    assert not Condition("world", "open", (1,)).holds(state)
    assert not Condition("world", "year", (True,)).holds(state)
    assert Condition("world", "year", (2, 1.0)).holds(state)
    assert not Condition("world", "weather", ("rain",)).holds(state)
    assert not Condition("world", "robin", ("asked",)).holds(state)
    assert Condition("quests", "robin", ("found", "asked")).holds(state)


def test_the_words_of_a_file_are_those_of_the_types() -> None:
    assert (get_args(Scope), get_args(Needs)) == (SCOPES, NEEDS)
