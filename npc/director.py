"""Who is meant by a line that names nobody as its addressee."""

import re
from collections.abc import Mapping
from typing import Protocol

from npc.persona import Persona

_WORD = re.compile(r"\w+")
#: Parts of names that say nothing by themselves.
_TITLES = frozenset(
    [
        "the",
        "old",
        "young",
        "captain",
        "lady",
        "lord",
        "sir",
        "master",
        "mistress",
        "doctor",
        "mr",
        "mrs",
        "ms",
        "of",
    ]
)


class Cast(Protocol):
    """Whoever can be chosen from, in the order of the scene file."""

    @property
    def npcs(self) -> Mapping[str, Persona]:
        """By id; at least one."""
        ...


def choose(scene: Cast, text: str, last_spoken_to: str | None) -> str:
    """The id of the NPC who should answer: the first one that the text names, else the one that
    this player spoke to last, else the first of the scene.
    """
    words = [word.casefold() for word in _WORD.findall(text)]
    first: tuple[int, str] | None = None
    for npc, persona in scene.npcs.items():
        for name in _names(persona):
            at = _find(words, name)
            if at is not None and (first is None or at < first[0]):
                first = (at, npc)
    if first is not None:
        return first[1]
    if last_spoken_to in scene.npcs:
        assert last_spoken_to is not None
        return last_spoken_to
    return next(iter(scene.npcs))


def _names(persona: Persona) -> list[list[str]]:
    """What an NPC may be called, as words: its id, its name, and the parts of that name."""
    full = [word.casefold() for word in _WORD.findall(persona.name)]
    parts = [[word] for word in full if word not in _TITLES]
    return [[persona.id.casefold()], full, *parts]


def _find(words: list[str], name: list[str]) -> int | None:
    """Where `name` begins in `words`."""
    ends = range(len(words) - len(name) + 1)
    return next((at for at in ends if words[at : at + len(name)] == name), None)
