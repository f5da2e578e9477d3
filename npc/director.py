"""Who is meant by a line that names nobody as its addressee."""

import re
from collections.abc import Mapping
from typing import Protocol

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


class Named(Protocol):
    """Somebody who can be called."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def name(self) -> str: ...  # noqa: D102


class Cast(Protocol):
    """Whoever can be chosen from, in the order of the scene file."""

    @property
    def npcs(self) -> Mapping[str, Named]:
        """By id; at least one."""
        ...


def choose(scene: Cast, text: str, last_spoken_to: str | None) -> str:
    """The id of the NPC who should answer: the first one that the text names, else the one that
    this player spoke to last, else the first of the scene.
    """
    words = _words(text)
    named = [
        (at, -len(name), npc)
        for npc, named in scene.npcs.items()
        for name in _names(named)
        if (at := _find(words, name)) is not None
    ]
    if named:  # the earliest; of two that begin there, the longer one
        return min(named)[2]
    if last_spoken_to in scene.npcs:
        assert last_spoken_to is not None
        return last_spoken_to
    return next(iter(scene.npcs))


def _names(npc: Named) -> list[list[str]]:
    """What an NPC may be called, as words: its id, its name, and the parts of that name."""
    full = _words(npc.name)
    parts = [[word] for word in full if word not in _TITLES]
    return [name for name in (_words(npc.id), full, *parts) if name]


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _find(words: list[str], name: list[str]) -> int | None:
    """Where `name` begins in `words`."""
    ends = range(len(words) - len(name) + 1)
    return next((at for at in ends if words[at : at + len(name)] == name), None)
