"""What an NPC does not say as long as it is in its part: that it is a machine, what it was told to
be, and the marks that stand around turns.

The phrases are in `in_character.json`; what would give an NPC's own prompt away follows from its
persona.
"""

import re
from functools import lru_cache
from importlib.resources import files

from npc.persona import Persona
from npc.safety.automaton import Search
from npc.safety.patterns import LONGEST
from npc.safety.rules import Rule, RuleSet, parse_rules

#: So many words in a row, as they stand in the description of an NPC, are no coincidence.
LEAK_WORDS = 6
_WORD = re.compile(r"[^\s]+")
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
    words = dict.fromkeys([f"You are {name},", f"You are {name}.", f"{name} knows:"])
    for text in description(name, role, voice)[1:]:
        words.update(dict.fromkeys(runs(text, LEAK_WORDS)))
    search = Search(tuple(word for word in words if len(word) <= LONGEST))
    return RuleSet.of([(Rule("leak", "regenerate"), search)])


def runs(text: str, count: int) -> list[str]:
    """All runs of so many words in a text, without the punctuation around them."""
    spans = [match.span() for match in _WORD.finditer(text)]
    pairs = zip(spans, spans[count - 1 :], strict=False)
    return [text[begin:end].strip(".,;:!?()*-") for (begin, _), (_, end) in pairs]
