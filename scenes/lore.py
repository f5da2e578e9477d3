"""Lore: what there is to know, who knows it, and what brings it to mind.

An entry is data. Those that always hold stand in the prompt's shared beginning; the others wait for
what is said, and for the state of the world. `npc.lore` does the waiting.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from scenes.conditions import Condition, read_conditions
from scenes.document import PackError, Section
from scenes.patterns import PatternError, compile_pattern

#: Entries of one file.
MAX_ENTRIES = 1000
#: Characters; about four make a token.
MAX_TEXT = 4_000
MAX_KEYS = 64
MAX_KEY = 200
MAX_WHO = 256
#: Tokens of lore in one turn at most.
MAX_TOKENS = 8_000
_MOST = 1_000_000

Scope = Literal["world", "scene", "faction", "npc"]
Needs = Literal["any", "all", "not_any", "not_all"]
SCOPES: tuple[Scope, ...] = ("world", "scene", "faction", "npc")
NEEDS: tuple[Needs, ...] = ("any", "all", "not_any", "not_all")


@dataclass(frozen=True, slots=True)
class LoreEntry:
    """Something to know.

    Attributes:
        id: unique where it is written.
        text: what is known.
        scope: who knows it. "world" and "scene" are for everybody in the scene; the first is what
            holds elsewhere too.
        who: ids of the factions or NPCs that the scope speaks of.
        keys: words that bring it to mind; any of them does.
        patterns: the same as regular expressions in RE2's syntax.
        also: further words, which `also_needs` wants beside a key.
        also_needs: "any" or "all" of them said, or "not_any", "not_all".
        case: whether upper and lower case differ in keys.
        whole_words: whether a key must not be part of a longer word.
        constant: it needs no key.
        when: all of these must hold.
        priority: if not everything fits, higher ones are told first.
        order: what is told together is told in this order.
    """

    id: str
    text: str
    scope: Scope = "scene"
    who: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    also_needs: Needs = "any"
    case: bool = False
    whole_words: bool = True
    constant: bool = False
    when: tuple[Condition, ...] = ()
    priority: int = 0
    order: int = 100

    @property
    def lasting(self) -> bool:
        """Whether it holds at all times, so that it can stand in the beginning of all prompts."""
        return self.constant and not self.when

    @property
    def for_everybody(self) -> bool:
        """Whether all NPCs of a scene know it."""
        return self.scope in ("world", "scene")

    def known_to(self, npc: str, factions: Iterable[str]) -> bool:
        """Whether an NPC of the scene knows it."""
        if self.scope == "npc":
            return npc in self.who
        return self.for_everybody or not set(factions).isdisjoint(self.who)


def read_lore(section: Section, *, of_one: bool = False) -> tuple[LoreEntry, ...]:
    """The `lore:` of a scene, lore or NPC file.

    Args:
        of_one: it is an NPC's file, so all of it is what this NPC knows.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    read = partial(_entry, of_one=of_one)
    return tuple(section.entries("lore", MAX_ENTRIES, read).values())


def check_who(file: Path, lore: Iterable[LoreEntry], npcs: set[str], factions: set[str]) -> None:
    """Complain about entries for somebody who is not in the pack.

    Raises:
        PackError: names the entry.
    """
    for entry in lore:
        known = npcs if entry.scope == "npc" else factions
        for who in entry.who:
            if who not in known:
                what = "no NPC of this scene is" if entry.scope == "npc" else "nobody here is of"
                raise PackError(file, 0, f"lore {entry.id}", f"who: {what} {who!r}")


def _entry(section: Section, *, of_one: bool) -> LoreEntry:
    scope: Scope = "npc" if of_one else "scene"
    who: tuple[str, ...] = ()
    if not of_one:
        scope = section.choice("scope", SCOPES, scope)
        who = _who(section, scope)
    entry = LoreEntry(
        id=section.id("id"),
        text=section.text("text", MAX_TEXT),
        scope=scope,
        who=who,
        keys=_words(section, "keys"),
        patterns=_patterns(section),
        also=_words(section, "also"),
        also_needs=section.choice("also_needs", NEEDS, "any"),
        case=section.flag("case", default=False),
        whole_words=section.flag("whole_words", default=True),
        constant=section.flag("constant", default=False),
        when=read_conditions(section),
        priority=section.number("priority", -_MOST, _MOST, default=0),
        order=section.number("order", -_MOST, _MOST, default=100),
    )
    if not (entry.constant or entry.keys or entry.patterns):
        section.fail("keys", "needs a key or a pattern that brings it to mind, or constant: true")
    section.finish()
    return entry


def _who(section: Section, scope: Scope) -> tuple[str, ...]:
    names = []
    for at, (line, name) in enumerate(section.texts("who", MAX_WHO, MAX_KEY)):
        section.check_id(f"who[{at}]", name, line)
        names.append(name)
    if scope in ("faction", "npc") and not names:
        section.fail("who", f"must list the ids that the scope {scope} speaks of")
    if scope in ("world", "scene") and names:
        section.fail("who", f"the scope {scope} is for everybody; use faction or npc")
    return tuple(names)


def _words(section: Section, field: str) -> tuple[str, ...]:
    return tuple(word for _, word in section.texts(field, MAX_KEYS, MAX_KEY))


def _patterns(section: Section) -> tuple[str, ...]:
    patterns = []
    for at, (line, pattern) in enumerate(section.texts("patterns", MAX_KEYS, MAX_KEY)):
        try:
            compile_pattern(pattern, case=True)
        except PatternError as error:
            section.fail(f"patterns[{at}]", str(error), line)
        patterns.append(pattern)
    return tuple(patterns)
