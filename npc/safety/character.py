"""What an NPC does not say as long as it is in its part: that it is a machine, what it was told to
be, the marks that stand around turns, lines for others, and what a line that is meant for the model
puts into its mouth.

The phrases are in `in_character.json`; all else follows from the persona and the line.
"""

import re
from functools import lru_cache
from importlib.resources import files

from npc.persona import Persona
from npc.prompt import speaker
from npc.safety.automaton import Search
from npc.safety.patterns import LONGEST
from npc.safety.reading import Reading
from npc.safety.rules import Rule, RuleSet, parse_rules
from npc.safety.steering import inspect
from npc.transcript import Line

#: So many words in a row, as they stand in the description of an NPC, are no coincidence.
LEAK_WORDS = 6
#: So many words of a line that is meant for the model, said after it, are an echo.
ECHO_WORDS = 4
#: Runs of one line that are looked for: more is only ever in lines that are there to be a burden.
MOST_RUNS = 64
_WORD = re.compile(r"[^\s]+")
_EMPHASIS = re.compile(r"['\"“„«]([^'\"”“»\n]{4,40})['\"”“»]|\b(\w{4,})\b")
_QUOTED = re.compile(r'"[^"]*"|“[^”]*”|„[^“]*“|«[^»]*»')


@lru_cache(maxsize=1)
def in_character() -> RuleSet:
    """The phrases with which models leave their part."""
    return parse_rules(files("npc.safety").joinpath("in_character.json").read_bytes())


def leaks_of(persona: Persona) -> RuleSet:
    """What would tell others how a persona was described to the model. What it may say is not in
    it: what it knows, and what the description quotes.
    """
    return _leaks(persona.name, persona.role, persona.voice)


def description(name: str, role: str, voice: str) -> list[str]:
    """The sentences that make a model this NPC, as far as they are not for others' ears."""
    said_by_it = _QUOTED.sub("\n", voice)
    return [f"You are {name}, {role}.", *said_by_it.splitlines()]


@lru_cache(maxsize=256)  # NPCs that speak at about the same time
def _leaks(name: str, role: str, voice: str) -> RuleSet:
    words = dict.fromkeys([f"You are {name}", f"{name} knows:", f"({name}"])
    for text in description(name, role, voice)[1:]:
        words.update(dict.fromkeys(runs(text, LEAK_WORDS)))
    search = Search(tuple(word for word in words if len(word) <= LONGEST))
    return RuleSet.of([(Rule("leak", "regenerate"), search)])


def turn_rules(persona: Persona, line: Line) -> RuleSet:
    """What an NPC does not say in answer to one line: its own name before its words, anything in
    the name of who is speaking, and what that line dictates, if it is meant for the model.
    """
    own = "".join(char if char.isalnum() else f"\\{char}" for char in persona.name)
    rules = [(Rule("own_name", "replace"), Search(patterns=(rf"{own}:\s?",), whole_words=False))]
    if any(map(str.isalnum, line.name)):
        rules.append((Rule("speaker", "regenerate"), Search((f"{speaker(line.name)}:",))))
    if inspect(line.text).meant_for_model:
        words = dict.fromkeys([*dictated(line.text), *runs(line.text, ECHO_WORDS)[:MOST_RUNS]])
        name, fold = persona.name.casefold(), Reading().fold
        usable = (w for w in words if fold(w).strip() and w.casefold() not in name)
        known = tuple(word for word in usable if len(word) <= LONGEST // 2)
        rules.append((Rule("dictated", "regenerate"), Search(known, whole_words=False)))
    return RuleSet.of(rules)


def dictated(text: str) -> list[str]:
    """Words that a line wants to hear: in capitals, or in quotation marks."""
    found = (match.groups() for match in _EMPHASIS.finditer(text))
    return [quoted or word for quoted, word in found if quoted or word.isupper()]


def runs(text: str, count: int) -> list[str]:
    """All runs of so many words in a text, without the punctuation around them."""
    spans = [match.span() for match in _WORD.finditer(text)]
    pairs = zip(spans, spans[count - 1 :], strict=False)
    return [text[begin:end].strip(".,;:!?()*-") for (begin, _), (_, end) in pairs]
