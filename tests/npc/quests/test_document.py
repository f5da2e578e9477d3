"""A quest that cannot work is refused when it is read, with file, line and what would be right."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from npc.quests.graph import dot, graph_svg, mermaid
from scenes.document import PackError
from tests.npc.quests.packs import GRIFFIN, HARN, QUEST, SCENE, read, write


def test_the_sample_is_right(tmp_path: Path) -> None:
    quest = read(write(tmp_path))["mill"]
    assert quest.start == "asked"
    assert [stage.id for stage in quest.stages.values() if stage.ending] == ["home", "lost"]
    assert quest.binds("harn", "start_quest")
    assert not quest.binds("harn", "give_item")


def test_the_shipped_quest_has_three_stages_and_two_endings() -> None:
    quest = read(GRIFFIN)["light_in_the_mill"]
    endings = [stage.ending for stage in quest.stages.values() if stage.ending]
    assert sorted(endings) == ["bad", "good"]
    assert len(quest.stages) - len(endings) == 3


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("giver: harn", "giver: mira", 3, "no NPC of this scene is 'mira' (there are harn)"),
        ("{to: gone, on: {event: accepted}}", "{to: away, on: {event: accepted}}", 9, "no stage"),
        ("{event: accepted}", "{event: acepted}", 9, "lists no event 'acepted'"),
        ("{harn: [start_quest]}", "{harn: [sell_soul]}", 7, "has no action 'sell_soul'"),
        ("{harn: Nobody has gone.}", "{hahn: Nobody has gone.}", 6, "no NPC of this scene"),
        ("by: harn", "by: hern", 10, "no NPC of this scene is 'hern'"),
        ("{items: {whistle: 1}}", "{items: {flute: 1}}", 15, "does not list item.flute"),
        ("{items: {whistle: 1}}", "{flags: {bold: true}}", 15, "does not list it under context"),
        ("{items: {whistle: 1}}", "{quests: {mil: [asked]}}", 15, "no such quest"),
        ("{items: {whistle: 1}}", "{quests: {mill: [aksed]}}", 15, "has no stage 'aksed'"),
        ("{items: {whistle: 1}}", "{relation: {harn.love: 5}}", 15, "harn.love: must be"),
        ("{items: {whistle: 1}}", "{world: {moon: full}}", 15, "no such fact under meta"),
        ("{items: {whistle: 1}}", "{stuff: {whistle: 1}}", 15, "must name something under"),
        ("{id: lost, ending: bad}", "{id: lost}", 18, "is a dead end"),
        (", ending: good", "", 17, "is a dead end"),
        ("{id: lost, ending: bad}", "{id: lost, ending: bad}\n  - {id: moon, ending: ha}", 19,
         "nothing leads to it"),
        ("{id: lost, ending: bad}", "{id: lost, next: [{to: gone, on: {event: found}}], ending: b}",
         18, "is an ending, and nothing comes after"),
        ("- {to: lost, on: {event: home}}", "- {to: gone, on: {event: home}}",
         16, "leads to itself"),
        ("{event: home}}\n  - {id: home",
         "{event: home}}\n      - {to: home, on: {event: home}}\n  - {id: home", 17, "never taken"),
        ("after_s: 60, to: lost", "after_s: 60, to: nowhere", 11, "'nowhere', which is no stage"),
        ("after_s: 60, ", "", 13, "is missing"),
        ("- {to: lost, on: {event: home}}", "- {to: lost}", 16, "needs on, when or both"),
        ("{event: home}}", "{event: home, action: give_item}}", 16, "one event or one action"),
        ("- {id: home", "- {id: gone", 17, "'gone' is the id of another entry of stages"),
        ("    tells: {harn", "    tels: {harn", 6, "did you mean tells?"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_line(
    tmp_path: Path, old: str, new: str, line: int, problem: str
) -> None:
    assert QUEST.count(old) == 1
    folder = write(tmp_path, QUEST.replace(old, new))
    with pytest.raises(PackError) as error:
        read(folder)
    assert str(error.value).startswith(f"{folder / 'quests' / 'mill.yaml'}:{line}:")
    assert problem in str(error.value)


def test_a_circle_without_an_end_is_refused(tmp_path: Path) -> None:
    quest = QUEST.replace(
        "  - {id: lost, ending: bad}",
        "  - {id: lost, next: [{to: lost2, on: {event: home}}]}\n"
        "  - {id: lost2, next: [{to: lost, on: {event: home}}]}",
    )
    with pytest.raises(PackError, match="stages lost: no ending can be reached"):
        read(write(tmp_path, quest))


def test_orders_are_checked_against_the_action(tmp_path: Path) -> None:
    order = "  - id: gone\n    orders: [{npc: harn, action: give_item, args: {itm: rope}}]"
    with pytest.raises(PackError, match="give_item has no argument 'itm'"):
        read(write(tmp_path, QUEST.replace("  - id: gone", order)))


@pytest.mark.parametrize(
    ("harn", "problem"),
    [
        ("  - {name: sell}", "is missing: 'sell' is none of those known here"),
        ("  - {name: Sell, does: sells}", "'Sell' must be a-z"),
        ("  - {name: give_item}", "'give_item' is the name of another entry of actions"),
        ("  - {name: sell, does: sells, args: {x: 3}}", "must be a JSON schema"),
        ("  - {name: sell, does: sells, optional: [y]}", "'y' is not among args"),
        ("examples: [{player: a, npc: b, does: {sell: {}}}]", "'sell' is none of this NPC's"),
        ("examples: [{player: a, npc: b, does: {give_item: {x: 1}}}]", "has other arguments"),
    ],
)
def test_actions_that_cannot_be_used_are_named(tmp_path: Path, harn: str, problem: str) -> None:
    with pytest.raises(PackError) as error:
        read(write(tmp_path, harn=HARN + harn + "\n"))
    assert problem in str(error.value)


def test_a_scene_may_have_actions_of_its_own(tmp_path: Path) -> None:
    scene = (
        SCENE + "actions: [{name: ring, does: rings the bell, args: {times: {type: integer}}}]\n"
    )
    quests = read(write(tmp_path, scene=scene, harn=HARN + "  - name: ring\n"))
    assert "mill" in quests


def test_drawings_hold_every_stage_and_nothing_that_breaks_out(tmp_path: Path) -> None:
    wild = '<b> & "quoted" -->'
    quest_text = QUEST.replace("title: The Mill", f"title: '{wild}'").replace(
        "    tells: {harn", f"    journal: '{wild}'\n    tells: {{harn"
    )
    quest = read(write(tmp_path, quest_text))["mill"]
    svg = ElementTree.fromstring(graph_svg(quest, now="gone"))
    space = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{space}rect")) == 4
    assert len(svg.findall(f"{space}path")) == 5
    assert svg.findall(f"{space}rect[@class='now']")
    assert wild in "".join(svg.itertext())
    assert mermaid(quest).count(" --> ") == 5 + 1 + 2
    assert dot(quest).count(" -> ") == 5
    assert "<b>" not in graph_svg(quest)


WILD = [
    "<script>alert(1)</script>",
    "</text></svg><script>alert(1)</script>",
    "\"'><g onload=alert(1)>",
    "]]><!-- &lol; <![CDATA[",
    "\x00\x0b\x1b[2J\ud800\ufffe",
    "\u202egnp.exe\u200b",
    "x" * 10_000,
    "旅" * 10_000,
    "${7*7}{{7*7}}`\n\t--> [*]",
]


@pytest.mark.parametrize("wild", WILD)
def test_names_of_a_quest_are_text_in_its_drawings_and_keep_to_their_boxes(
    tmp_path: Path, wild: str
) -> None:
    quest = read(write(tmp_path))["mill"]
    stages = {
        key: replace(stage, journal=wild, ending=stage.ending and wild)
        for key, stage in quest.stages.items()
    }
    quest = replace(quest, title=wild, stages=stages)
    svg = ElementTree.fromstring(graph_svg(quest, now="gone").encode())
    names = {element.tag.rpartition("}")[2] for element in svg.iter()}
    assert names == {"svg", "title", "style", "defs", "marker", "path", "rect", "text"}
    assert not [key for each in svg.iter() for key in each.attrib if key.startswith("on")]
    for text in svg.iter("{http://www.w3.org/2000/svg}text"):
        shown = (text.text or "") + "".join(child.tail or "" for child in text)
        assert sum(2 if letter == "旅" else 1 for letter in shown) <= 40
    for drawing in (mermaid(quest), dot(quest)):
        assert wild not in drawing or wild.isalnum()
