"""From the fields of a card to a persona of ours, and from a changed persona back."""

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npc.cards import fields
from npc.cards.lorebook import read_lorebook, written
from npc.cards.macros import Macros
from npc.persona import (
    MAX_EXAMPLES,
    MAX_GREETING,
    MAX_GREETINGS,
    MAX_LINE,
    MAX_NAME,
    MAX_VOICE,
    Example,
    Persona,
)
from scenes.lore import MAX_TEXT, LoreEntry

_NOT_IN_NAMES = re.compile(r"[:\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_START = re.compile(r"<start>", re.IGNORECASE)
#: Fields that people write for the model and its server, not about the character.
_LEFT = (
    "system_prompt",
    "post_history_instructions",
    "group_only_greetings",
    "creator_notes",
    "assets",
)
SCENARIO = "scenario"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a card does not say, and an importer must.

    Attributes:
        id: of the NPC; "" makes one of its name.
        kind: how urgent its words are, one of `npc.priority.KINDS`.
        role: what it is to the people around.
    """

    id: str = ""
    kind: str = "host"
    role: str = "one of the people here"


@dataclass(frozen=True, slots=True)
class Draft:
    """What a card became.

    Attributes:
        persona: the character.
        mapped: what was taken over, for people.
        left_out: what was not, and how often.
    """

    persona: Persona
    mapped: tuple[str, ...]
    left_out: Mapping[str, int]


def draft(data: Mapping[str, Any], wishes: Wishes) -> Draft:
    """The persona of a card.

    Raises:
        CardError: its lorebook cannot be used.
    """
    left_out: Counter[str] = Counter()
    name = _name(fields.text(data, "name"))
    macros = Macros(_name(fields.text(data, "nickname")) or name)
    parts = (macros.resolve(fields.text(data, field)) for field in ("description", "personality"))
    voice = _cut("\n\n".join(part for part in parts if part), MAX_VOICE, "description", left_out)
    greeting = _cut(
        macros.resolve(fields.text(data, "first_mes")), MAX_GREETING, "first_mes", left_out
    )
    others = [macros.resolve(words) for words in fields.texts(data, "alternate_greetings")]
    others = [_cut(w, MAX_GREETING, "alternate_greetings", left_out) for w in others if w]
    if others and not greeting:
        greeting = others.pop(0)
    left_out["alternate greetings beyond the first ones"] += max(len(others) - MAX_GREETINGS, 0)
    examples = _examples(fields.text(data, "mes_example"), macros, left_out)
    lore: dict[str, LoreEntry] = {}
    scenario = _cut(macros.resolve(fields.text(data, "scenario")), MAX_TEXT, "scenario", left_out)
    if scenario:
        lore[SCENARIO] = LoreEntry(SCENARIO, scenario, "npc", constant=True)
    book = fields.mapping(data, "character_book")
    if book:
        lore |= read_lorebook(book, "npc", macros, left_out)
        if fields.flag(book, "recursive_scanning", default=False):
            left_out["recursive_scanning of the lorebook"] += 1
    for field in _LEFT:
        if data.get(field):
            left_out[field] += 1
    for macro, times in macros.dropped.items():
        left_out[f"macro {macro}, which depends on a run"] += times
    persona = Persona(
        id=wishes.id or slug(name),
        name=name,
        kind=wishes.kind,
        role=wishes.role,
        voice=voice or name,
        greeting=greeting,
        examples=tuple(examples),
        greetings=tuple(others[:MAX_GREETINGS]),
        lore=tuple(lore.values()),
        lore_tokens=max(0, min(fields.number(book, "token_budget", 0), 2_000)),
    )
    return Draft(persona, _mapped(persona, lore), +left_out)


def revised(data: Mapping[str, Any], before: Persona, now: Persona) -> dict[str, Any]:
    """The fields of a card with what has changed since it was imported; all others stay as they
    were, with their macros and what we do not know.

    Args:
        before: what the card became; now: what became of that.
    """
    result = dict(data)
    if now.name != before.name:
        result["name"] = now.name
    if (now.voice, now.knows) != (before.voice, before.knows):
        facts = "".join(f"\n- {fact}" for fact in now.knows)
        result["description"] = now.voice + (f"\n\n{now.name} knows:{facts}" if facts else "")
        result["personality"] = ""
    if now.greeting != before.greeting:
        result["first_mes"] = now.greeting
    if now.greetings != before.greetings:
        result["alternate_greetings"] = list(now.greetings)
    if now.examples != before.examples:
        result["mes_example"] = "\n".join(
            f"<START>\n{{{{user}}}}: {example.player}\n{{{{char}}}}: {example.npc}"
            for example in now.examples
        )
    if now.lore != before.lore:
        _revise_lore(result, before, now)
    return result


def slug(name: str) -> str:
    """An id made of a name."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:40].strip("_")
    return words or f"npc_{zlib.crc32(name.encode()):08x}"


def _revise_lore(result: dict[str, Any], before: Persona, now: Persona) -> None:
    old = {entry.id: entry for entry in before.lore}
    new = {entry.id: entry for entry in now.lore}
    scenario = new.pop(SCENARIO, None)
    if scenario != old.pop(SCENARIO, None):
        result["scenario"] = scenario.text if scenario else ""
    book = dict(fields.mapping(result, "character_book"))
    raw = book.get("entries")
    entries = []
    for at, entry in enumerate(raw if isinstance(raw, list) else []):
        name = f"entry-{at + 1}"
        mine = new.pop(name, None)
        if name not in old or mine == old[name]:
            entries.append(entry)  # as it was, or never ours
        elif mine is not None:
            entries.append(written(mine, entry))
    entries += [written(entry, {}) for entry in new.values()]
    result["character_book"] = {"extensions": {}, **book, "entries": entries}


def _name(name: str) -> str:
    return " ".join(_NOT_IN_NAMES.sub(" ", name).split())[:MAX_NAME].strip()


def _cut(text: str, limit: int, field: str, left_out: Counter[str]) -> str:
    """A text that fits, cut behind a paragraph, sentence or word."""
    if len(text) <= limit:
        return text
    head = text[:limit]
    end = max(head.rfind("\n\n"), head.rfind(". ") + 1)
    if end < limit // 2:
        end = head.rfind(" ") if " " in head else limit
    kept = head[:end].strip()
    left_out[f"characters at the end of {field}, which may have {limit}"] += len(text) - len(kept)
    return kept


def _examples(text: str, macros: Macros, left_out: Counter[str]) -> list[Example]:
    """Pairs of a line and its answer. Who speaks is read before names replace the macros."""
    char = re.escape(macros.char)
    speaks = re.compile(rf"(\{{\{{user\}}\}}|<user>|\{{\{{char\}}\}}|<bot>|{char})\s*:", re.I)
    found: list[Example] = []
    for block in _START.split(text):
        turns: list[tuple[str, list[str]]] = []
        for line in block.strip().splitlines():
            match = speaks.match(line.strip())
            if match:
                who = "player" if "user" in match[1].lower() else "npc"
                turns.append((who, [line.strip()[match.end() :]]))
            elif turns:
                turns[-1][1].append(line)
            elif line.strip():
                left_out["example lines that nobody says"] += 1
        at = 0
        while at < len(turns):
            pair = turns[at : at + 2]
            if [who for who, _ in pair] != ["player", "npc"]:
                left_out["example lines without a question or an answer"] += 1
                at += 1
                continue
            asked, said = (" ".join(macros.resolve("\n".join(lines)).split()) for _, lines in pair)
            at += 2
            if not asked or not said or max(len(asked), len(said)) > MAX_LINE:
                left_out["examples that are empty or too long"] += 1
            elif len(found) == MAX_EXAMPLES:
                left_out[f"examples beyond {MAX_EXAMPLES}"] += 1
            else:
                found.append(Example(asked, said))
    return found


def _mapped(persona: Persona, lore: Mapping[str, LoreEntry]) -> tuple[str, ...]:
    entries = len(lore) - (SCENARIO in lore)
    told = [f"voice ({len(persona.voice)} characters)"]
    if persona.greeting:
        told.append(f"{1 + len(persona.greetings)} greetings")
    if persona.examples:
        told.append(f"{len(persona.examples)} examples")
    if SCENARIO in lore:
        told.append("scenario (as lore that always holds)")
    if entries:
        told.append(f"{entries} lore entries")
    return tuple(told)
