"""A small pack with a quest, and ways to change it."""

from pathlib import Path

from npc.persona import read_personas
from npc.quests.document import read_quests
from npc.quests.quest import Quest
from scenes.pack import load_pack

GRIFFIN = Path(__file__).parents[3] / "scenes" / "packs" / "gilded_griffin"

SCENE = """\
id: inn
title: The Inn
text: An inn at a ford.
meta: {weather: rain}
events: [accepted, found, home]
context: [brave, item.whistle]
npcs: [npcs/harn.yaml]
quests: [quests/mill.yaml]
"""
HARN = """\
id: harn
name: Harn
kind: quest_giver
role: captain
voice: Gruff.
actions:
  - {name: start_quest, args: {quest: [mill]}}
  - name: give_item
"""
QUEST = """\
id: mill
title: The Mill
giver: harn
stages:
  - id: asked
    tells: {harn: Nobody has gone.}
    allows: {harn: [start_quest]}
    next:
      - {to: gone, on: {event: accepted}}
      - {to: gone, on: {action: start_quest, by: harn}}
  - id: gone
    tells: {"*": Somebody is up there.}
    timeout: {after_s: 60, to: lost}
    next:
      - {to: home, on: {event: home, with: {alive: true}}, when: {items: {whistle: 1}}}
      - {to: lost, on: {event: home}}
  - {id: home, ending: good, rewards: [{item: silver, count: 20}]}
  - {id: lost, ending: bad}
"""


def write(folder: Path, quest: str = QUEST, scene: str = SCENE, harn: str = HARN) -> Path:
    """The pack in a folder."""
    for name, text in (
        ("scene.yaml", scene),
        ("npcs/harn.yaml", harn),
        ("quests/mill.yaml", quest),
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return folder


def read(folder: Path) -> dict[str, Quest]:
    """The quests of a pack."""
    pack = load_pack(folder)
    people = {persona.id: persona for persona in read_personas(pack)}
    return read_quests(pack, people)
