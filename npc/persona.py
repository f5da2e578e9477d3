"""Who an NPC is: one YAML file, read and checked."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npc.priority import KINDS
from scenes.document import Section, read_document
from scenes.pack import ScenePack

#: Characters; about four make a token, and all of them are read by the model.
MAX_NAME = 64
MAX_ROLE = 200
MAX_VOICE = 2_000
MAX_LINE = 1_000
MAX_FACTS = 64
MAX_EXAMPLES = 32


@dataclass(frozen=True, slots=True)
class Example:
    """What a player may say, and how this NPC would answer: the best way to show a voice."""

    player: str
    npc: str


@dataclass(frozen=True, slots=True)
class Persona:
    """One character.

    Attributes:
        id: unique in its scene.
        name: what others call it.
        kind: one of `npc.priority.KINDS`; decides how urgent its words are.
        role: what it is to the people around, as part of a sentence ("the innkeeper").
        voice: who it is and how it talks.
        knows: facts, in its own words.
        greeting: its first line to somebody who comes in; "" for none.
        examples: lines it has never said but would.
    """

    id: str
    name: str
    kind: str
    role: str
    voice: str
    knows: tuple[str, ...] = ()
    greeting: str = ""
    examples: tuple[Example, ...] = ()

    @property
    def quest_giver(self) -> bool:
        """Whether players need it to go on with the game."""
        return self.kind == "quest_giver"


def load_persona(file: Path) -> Persona:
    """Read and check one persona file.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    return _persona(read_document(file))


def read_personas(pack: ScenePack) -> Iterator[Persona]:
    """The people of a pack one by one, in the scene file's order.

    Raises:
        PackError: a file is wrong, or two personas share an id or a name.
    """
    taken: set[tuple[str, str]] = set()
    for file in pack.npcs:
        section = read_document(file)
        persona = _persona(section)
        for field, mine in (("id", persona.id), ("name", persona.name)):
            if (field, mine.casefold()) in taken:
                section.fail(field, f"{mine!r} is the {field} of another NPC of this scene")
            taken.add((field, mine.casefold()))
        yield persona


def _persona(section: Section) -> Persona:
    persona = Persona(
        id=section.id("id"),
        name=section.name("name", MAX_NAME),
        kind=sys.intern(section.choice("kind", KINDS)),
        role=section.text("role", MAX_ROLE),
        voice=section.text("voice", MAX_VOICE),
        knows=tuple(fact for _, fact in section.texts("knows", MAX_FACTS, MAX_LINE)),
        greeting=section.text("greeting", MAX_LINE, default=""),
        examples=tuple(map(_example, section.sections("examples", MAX_EXAMPLES))),
    )
    section.finish()
    return persona


def _example(section: Section) -> Example:
    example = Example(section.text("player", MAX_LINE), section.text("npc", MAX_LINE))
    section.finish()
    return example
