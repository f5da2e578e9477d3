"""Reactions in a pack's files are read as written, and each mistake is named with its line."""

from pathlib import Path

import pytest

from npc.persona import read_personas
from npc.roster import load_roster
from scenes.document import PackError
from scenes.pack import load_pack
from scenes.reactions import MOODS, PER_DAY, Reaction, Shift, same
from tests.scenes.packs import MIRA, SCENE, write_pack

REACTIONS = """\
reactions:
  - id: thunder
    event: thunder
    mood: afraid
    strength: 30
  - id: locket
    event: shows
    with: {item: [locket, ring], npc: mira}
    trust: 20
    affection: -5
    fear: 3
    per_day: 1
  - id: rude
    said: [rat, "old goat"]
    affection: -10
  - id: paid
    action: give_item
    with: {ok: true}
    trust: 1
  - id: saved
    quest: robin
    with: {stage: home}
    affection: 30
"""
FIRST = SCENE.count("\n") + 1


def test_reactions_are_read(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, scene=SCENE + REACTIONS))
    assert pack.reactions == (
        Reaction("thunder", "event", ("thunder",), mood="afraid", strength=30),
        Reaction(
            "locket",
            "event",
            ("shows",),
            (("item", ("locket", "ring")), ("npc", ("mira",))),
            Shift(20, -5, 3),
            per_day=1,
        ),
        Reaction("rude", "said", ("rat", "old goat"), shift=Shift(affection=-10)),
        Reaction("paid", "action", ("give_item",), (("ok", (True,)),), Shift(trust=1)),
        Reaction("saved", "quest", ("robin",), (("stage", ("home",)),), Shift(affection=30)),
    )
    assert pack.reactions[2].per_day == PER_DAY


@pytest.mark.parametrize(
    ("entry", "field", "words"),
    [
        ("{id: a, trust: 1}", "reactions[0]", "must have one of event, said, action, quest"),
        ("{id: a, event: x, said: [y]}", "reactions[0]", "it has 2 of them"),
        ("{id: a, event: 'x y'}", "reactions[0].event", "must be 1 to 64 of"),
        ("{id: a, event: x, trust: 101}", "reactions[0].trust", "from -100 to 100"),
        ("{id: a, event: x, mood: jolly}", "reactions[0].mood", ", ".join(MOODS)),
        ("{id: a, event: x, strength: 0}", "reactions[0].strength", "from 1 to 100"),
        ("{id: a, event: x, per_day: 0}", "reactions[0].per_day", "from 1 to 1000"),
        ("{id: a, said: [x], with: {y: 1}}", "reactions[0].with", "has no fields"),
        ("{id: a, said: x}", "reactions[0].said", "a list"),
        ("{id: a, event: x, thing: y.z}", "reactions[0]", "it has 2 of them"),
        ("{id: a, event: x, mood: sad, when: {flags: {f: 1}}}", "reactions[0].mood", "sees a mood"),
        ("{id: a, event: x, when: {}}", "reactions[0].when", "must name something"),
        ("{id: a, event: x, trsut: 1}", "reactions[0].trsut", "did you mean trust?"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, entry: str, field: str, words: str) -> None:
    folder = write_pack(tmp_path, scene=f"{SCENE}reactions:\n  - {entry}\n")
    with pytest.raises(PackError) as caught:
        load_pack(folder)
    assert caught.value.line == FIRST + 1
    assert caught.value.field == field
    assert words in caught.value.problem


def test_ids_are_unique_in_a_file_and_between_an_npc_and_its_scene(tmp_path: Path) -> None:
    twice = "reactions:\n  - {id: a, event: x}\n  - {id: a, event: y}\n"
    with pytest.raises(PackError, match="id of another entry of reactions"):
        load_pack(write_pack(tmp_path / "scene", scene=SCENE + twice))
    once = "reactions:\n  - {id: thunder, event: x}\n"
    folder = write_pack(tmp_path / "npc", scene=SCENE + REACTIONS, mira=MIRA + once)
    with pytest.raises(PackError, match="id of a reaction of the scene"):
        list(read_personas(load_pack(folder)))


def test_details_must_be_as_named_and_true_is_not_one() -> None:
    paid = Reaction("paid", "action", ("pay",), (("ok", (True,)), ("coin", ("gold", "silver"))))
    assert paid.fits({"ok": True, "coin": "gold", "more": 1})
    assert not paid.fits({"ok": 1, "coin": "gold"})
    assert not paid.fits({"ok": True, "coin": "copper"})
    assert not paid.fits({"ok": True})
    assert same(1, 1.0)
    assert not same(0, False)


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ("thing: door.shut", "thing"),
        ("thing: door", "thing"),
        ("event: x, when: {world: {gold: 1}}", "when.world"),
        ("event: x, when: {things: {door.shut: 1}}", "when.things"),
        ("event: x, when: {flags: {brave: true}}", "when.flags"),
        ("event: x, when: {items: {coin: 1}}", "when.items"),
    ],
)
def test_what_is_not_in_the_scene_is_named_in_its_rules_and_those_of_its_people(
    tmp_path: Path, rule: str, field: str
) -> None:
    things = SCENE + "entities: [{id: door, keys: {open: false}}]\n"
    rules = f"reactions:\n  - {{id: a, {rule}}}\n"
    for folder in (
        write_pack(tmp_path / "scene", scene=things + rules),
        write_pack(tmp_path / "npc", scene=things, mira=MIRA + rules),
    ):
        with pytest.raises(PackError) as caught:
            load_roster(load_pack(folder))
        assert caught.value.field == f"reactions[0].{field}"


def test_reactions_to_things_and_with_conditions_are_read_as_written(tmp_path: Path) -> None:
    scene = (
        f"{SCENE}context: [brave, item.coin]\nentities: [{{id: door, keys: {{open: false}}}}]\n"
        "reactions:\n"
        "  - {id: a, thing: door.open, with: {is: true, was: false}, mood: afraid,"
        " when: {things: {door.open: true}, world: {weather: rain}}}\n"
        "  - {id: b, event: x, trust: 5, when: {flags: {brave: true}, relation: {trust: 20}}}\n"
    )
    one, other = load_pack(write_pack(tmp_path, scene=scene)).reactions
    assert (one.cause, one.names, one.personal) == ("thing", ("door.open",), False)
    assert one.fields == (("is", (True,)), ("was", (False,)))
    assert [asked.about for asked in one.when] == ["world", "things"]
    assert other.personal
