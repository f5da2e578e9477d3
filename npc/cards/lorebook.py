"""Lorebooks of cards (V2 and V3 `character_book`, `lorebook_v3`) and World Info files, as our lore.

The two differ in names and shape only: a book has a list of `entries` with `keys`, a World Info
file a mapping of them with `key`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from npc.cards import fields
from npc.cards.errors import CardError
from npc.cards.macros import Macros
from scenes.lore import MAX_ENTRIES, MAX_KEY, MAX_KEYS, MAX_TEXT, NEEDS, LoreEntry, Needs, Scope
from scenes.patterns import PatternError, compile_pattern

_REGEX = re.compile(r"/(.+)/([a-z]*)", re.DOTALL)
#: SillyTavern's numbers.
_LOGIC: dict[int, Needs] = {0: "any", 1: "not_all", 2: "not_any", 3: "all"}
assert set(_LOGIC.values()) == set(NEEDS)
#: Fields that change when an entry is told, and have no equal here.
_UNUSED = ("probability", "sticky", "cooldown", "delay", "group", "delayUntilRecursion")
_NEUTRAL = (None, "", 0, 100, False)


def entries_of(book: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of a book or World Info file, as they are written.

    Raises:
        CardError: there is no list or mapping of them, or there are too many.
    """
    raw = book.get("entries")
    listed = list(raw.values()) if isinstance(raw, dict) else raw
    if not isinstance(listed, list):
        raise CardError("missing", "has no entries")
    if len(listed) > MAX_ENTRIES:
        raise CardError("too_large", f"has {len(listed)} entries, the limit is {MAX_ENTRIES}")
    return [entry for entry in listed if isinstance(entry, dict)]


def read_lorebook(
    book: Mapping[str, Any], scope: Scope, macros: Macros, left_out: Counter[str]
) -> dict[str, LoreEntry]:
    """Our lore of a book, by id; the id tells the entry's place in the book.

    Args:
        scope: who shall know it.
        left_out: told what could not be taken over, and how often.

    Raises:
        CardError: see `entries_of`.
    """
    found: dict[str, LoreEntry] = {}
    for at, raw in enumerate(entries_of(book)):
        entry = _entry(f"entry-{at + 1}", raw, scope, macros, left_out)
        if entry is not None:
            found[entry.id] = entry
    return found


def write_lorebook(lore: Mapping[str, LoreEntry], book: Mapping[str, Any]) -> dict[str, Any]:
    """A `character_book` of our lore.

    Args:
        book: an older one: its other fields are kept.
    """
    entries = [written(entry, {}) for entry in lore.values()]
    return {"extensions": {}, **book, "entries": entries}


def written(entry: LoreEntry, older: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of a `character_book`; of an older one all other fields are kept."""
    extensions = {
        **fields.mapping(older, "extensions"),
        "match_whole_words": entry.whole_words,
        "selectiveLogic": next(n for n, needs in _LOGIC.items() if needs == entry.also_needs),
    }
    return {
        "name": entry.id,
        "enabled": True,
        "use_regex": False,
        **older,
        "keys": [*entry.keys, *(f"/{pattern}/" for pattern in entry.patterns)],
        "secondary_keys": list(entry.also),
        "selective": bool(entry.also),
        "content": entry.text,
        "constant": entry.constant,
        "case_sensitive": entry.case,
        "priority": entry.priority,
        "insertion_order": entry.order,
        "extensions": extensions,
    }


def unsaid(lore: Iterable[LoreEntry]) -> Counter[str]:
    """What a lorebook has no place for, and how often."""
    left_out: Counter[str] = Counter()
    for entry in lore:
        left_out["conditions of lore entries"] += bool(entry.when)
        left_out["scopes of lore entries"] += bool(entry.who)
    return +left_out


def _entry(
    name: str, raw: Mapping[str, Any], scope: Scope, macros: Macros, left_out: Counter[str]
) -> LoreEntry | None:
    extra = {**raw, **fields.mapping(raw, "extensions")}
    if not fields.flag(raw, "enabled", default=True) or fields.flag(raw, "disable", default=False):
        left_out["lore entries that are switched off"] += 1
        return None
    decorators, content = _decorators(fields.text(raw, "content"))
    text = macros.resolve(content)
    if len(text) > MAX_TEXT:
        left_out[f"lore entries of more than {MAX_TEXT} characters"] += 1
        return None
    if not text or "dont_activate" in decorators:
        left_out["lore entries that are empty or never told"] += 1
        return None
    for unused in _UNUSED:
        if extra.get(unused) not in _NEUTRAL:
            left_out[f"{unused} of lore entries"] += 1
    for decorator in decorators.keys() - {"constant", "activate", "additional_keys"}:
        left_out[f"@@{decorator[:40]} of lore entries"] += 1
    given = fields.texts(raw, "keys") or fields.texts(raw, "key")
    given += fields.texts(decorators, "additional_keys")
    regex = fields.flag(extra, "use_regex", default=False)
    keys, patterns = _keys(given, macros, left_out, regex=regex)
    also: tuple[str, ...] = ()
    if fields.flag(raw, "selective", default=True):
        second = fields.texts(raw, "secondary_keys") or fields.texts(raw, "keysecondary")
        also, unused_patterns = _keys(second, macros, left_out, regex=False)
        left_out["regular expressions among secondary keys"] += len(unused_patterns)
    constant = fields.flag(raw, "constant", default=False) or bool(
        decorators.keys() & {"constant", "activate"}
    )
    if not (keys or patterns or constant):
        left_out["lore entries without a usable key"] += 1
        return None
    order = fields.number(raw, "insertion_order", fields.number(raw, "order", 100))
    case = extra.get("case_sensitive", extra.get("caseSensitive"))
    whole = extra.get("match_whole_words", extra.get("matchWholeWords"))
    return LoreEntry(
        id=name,
        text=text,
        scope=scope,
        keys=keys,
        patterns=patterns,
        also=also,
        also_needs=_LOGIC.get(fields.number(extra, "selectiveLogic", 0), "any"),
        case=case is True,
        whole_words=whole is not False,
        constant=constant,
        priority=fields.number(raw, "priority", 0),
        order=order,
    )


def _keys(
    given: list[str], macros: Macros, left_out: Counter[str], *, regex: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words and patterns of a list of keys."""
    keys: dict[str, None] = {}
    patterns: dict[str, None] = {}
    for key in given:
        found = _REGEX.fullmatch(key)
        if not regex and not found:
            word = macros.resolve(key)
            if 0 < len(word) <= MAX_KEY:
                keys[word] = None
            else:
                left_out[f"keys that are empty or longer than {MAX_KEY} characters"] += 1
            continue
        pattern = (found[1].replace("\\/", "/") if found else key).strip()
        if found and "s" in found[2]:
            pattern = f"(?s){pattern}"
        try:
            compile_pattern(pattern, case=True)
        except PatternError:
            left_out["keys that are regular expressions RE2 does not take"] += 1
            continue
        if len(pattern) <= MAX_KEY and pattern.isprintable() and pattern:
            patterns[pattern] = None
        else:
            left_out[f"regular expressions of more than {MAX_KEY} characters"] += 1
    left_out["keys beyond the first ones of an entry"] += max(len(keys) - MAX_KEYS, 0)
    left_out["keys beyond the first ones of an entry"] += max(len(patterns) - MAX_KEYS, 0)
    return tuple(keys)[:MAX_KEYS], tuple(patterns)[:MAX_KEYS]


def _decorators(content: str) -> tuple[dict[str, str], str]:
    """The `@@name value` lines at the head of a V3 entry, and the rest."""
    found: dict[str, str] = {}
    lines = content.split("\n")
    while lines and lines[0].startswith("@@"):
        name, _, value = lines.pop(0).lstrip("@").strip().partition(" ")
        found[name] = value.strip()
    return found, "\n".join(lines)
