"""A persona file is read as written, and each mistake in it is named with its line."""

from pathlib import Path

import pytest

from npc.persona import Example, load_persona, read_personas
from npc.priority import KINDS, Priorities
from scenes.pack import PackError, load_pack
from tests.scenes.packs import HARN, MIRA, write_pack


def test_a_persona_is_read(tmp_path: Path) -> None:
    mira = load_persona(write_pack(tmp_path) / "npcs" / "mira.yaml")
    assert (mira.id, mira.name, mira.kind) == ("mira", "Mira", "host")
    assert (mira.role, mira.voice) == ("the innkeeper", "Brisk and warm.")
    assert mira.knows == ("The stew is hot.", "A bed is five coppers.")
    assert mira.greeting == "Come in."
    assert mira.examples == (Example("Who are you?", "I'm Mira."),)
    assert not mira.quest_giver


def test_people_of_a_pack_keep_the_order_of_the_scene_file(tmp_path: Path) -> None:
    people = {p.id: p for p in read_personas(load_pack(write_pack(tmp_path)))}
    assert list(people) == ["mira", "harn"]
    assert people["harn"].quest_giver
    assert (people["harn"].knows, people["harn"].greeting, people["harn"].examples) == ((), "", ())


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "words"),
    [
        ("id: mira", "id: ''", 1, "id", "is empty"),
        ("name: Mira", "name: 'Mira: the innkeeper'", 2, "name", "without a colon"),
        ("name: Mira", 'name: "Mira\\nHarn"', 2, "name", "one line"),
        ("name: Mira", "name: " + "M" * 65, 2, "name", "the limit is 64"),
        ("kind: host", "kind: hero", 3, "kind", "quest_giver, companion, merchant, host, ambient"),
        ("kind: host\n", "", 1, "kind", "is missing"),
        ("voice: Brisk and warm.", "voice: [brisk]", 5, "voice", "a list"),
        ("knows:", "know:", 6, "know", "did you mean knows?"),
        ("  - The stew is hot.", "  - stew: hot", 7, "knows[0]", "a mapping"),
        ("  - The stew is hot.", "  - " + "hot " * 300, 7, "knows[0]", "the limit is"),
        ("greeting: Come in.", "greeting: ''", 9, "greeting", "is empty"),
        ("    npc: I'm Mira.", "    mira: I'm Mira.", 11, "examples[0].npc", "is missing"),
        ("    npc: I'm Mira.", "    npc: Yes.\n    no: 1", 13, "examples[0].no", "unknown"),
        ("  - player: Who", "  - player: Who\n  - player: Who", 11, "examples[0].npc", "missing"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, old: str, new: str, line: int, field: str, words: str
) -> None:
    assert old in MIRA
    write_pack(tmp_path, mira=MIRA.replace(old, new, 1))
    with pytest.raises(PackError) as caught:
        load_persona(tmp_path / "npcs" / "mira.yaml")
    assert (caught.value.line, caught.value.field) == (line, field)
    assert words in caught.value.problem


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [("id: harn", "id: MIRA", 1, "id"), ("name: Captain Harn", "name: mira", 2, "name")],
)
def test_two_people_of_a_scene_cannot_be_told_apart_by_case(
    tmp_path: Path, old: str, new: str, line: int, field: str
) -> None:
    pack = load_pack(write_pack(tmp_path, harn=HARN.replace(old, new)))
    with pytest.raises(PackError) as caught:
        list(read_personas(pack))
    assert caught.value.file.name == "harn.yaml"
    assert (caught.value.line, caught.value.field) == (line, field)


def test_every_kind_has_a_class_and_players_wait_least_for_quest_givers() -> None:
    priorities = Priorities()
    classes = {kind: priorities.of(kind) for kind in KINDS}
    assert classes["quest_giver"] == min(classes.values()) == 0
    assert [kind for kind in KINDS if classes[kind] == 0] == ["quest_giver"]
    assert classes["ambient"] == max(classes.values())
