"""A small valid pack to break in tests."""

from pathlib import Path
from textwrap import dedent

SCENE = """\
id: inn
title: The Inn
text: |
  An inn at a ford.
meta:
  weather: rain
  year: 1204
  open: true
instances: true
events:
  - thunder
npcs:
  - npcs/mira.yaml
  - npcs/harn.yaml
"""
MIRA = """\
id: mira
name: Mira
kind: host
role: the innkeeper
voice: Brisk and warm.
knows:
  - The stew is hot.
  - A bed is five coppers.
greeting: Come in.
examples:
  - player: Who are you?
    npc: I'm Mira.
"""
HARN = """\
id: harn
name: Captain Harn
kind: quest_giver
role: the captain of the watch
voice: Short and plain.
"""


def write_pack(folder: Path, scene: str = SCENE, mira: str = MIRA, harn: str = HARN) -> Path:
    """Write the pack into `folder`, with the given texts in place of its own."""
    (folder / "npcs").mkdir(parents=True, exist_ok=True)
    (folder / "scene.yaml").write_text(dedent(scene), "utf-8")
    (folder / "npcs" / "mira.yaml").write_text(dedent(mira), "utf-8")
    (folder / "npcs" / "harn.yaml").write_text(dedent(harn), "utf-8")
    return folder
