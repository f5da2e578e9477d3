"""From a talk to what is worth remembering of it, by rules.

Facts are sentences that the player said, in the player's words. What the NPC said is the model's
invention and makes no facts; a summary may tell of it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from npc.memory.records import Draft, Spoken, Talk

#: Facts of one talk, and sentences of a summary.
MAX_FACTS = 8
_SUMMARY_SENTENCES = 3
#: Characters of a fact and of a summary.
MAX_FACT = 200
MAX_SUMMARY = 300
#: What a statement is worth by itself, and from where on it is remembered.
_STATEMENT = 0.25
_SELF = 0.2
_NAME = 0.15
_NUMBER = 0.1
_WEIGHTY = 0.3
_SENTENCE = re.compile(r"[^.!?…。！？\n]+[.!?…。！？]*")
_WORD = re.compile(r"\w+")
_NAME_INSIDE = re.compile(r"(?<=[^\s.!?…] )[^\W\d_a-z]\w{2,}")
#: Words of the speaker about the speaker.
_FIRST_PERSON = re.compile(
    r"\b(i|me|my|mine|myself|we|us|our|ours|i'(m|ve|ll|d)|we'(re|ve|ll))\b", re.IGNORECASE
)
#: Words that make a statement matter for long.
_HEAVY = re.compile(
    r"\b(promised?|swear|swore|secrets?|names?|called|loved?|hated?|afraid|fears?|scared|died|dead|"
    r"kill(ed)?|born|married|mother|father|brothers?|sisters?|sons?|daughters?|wife|husband|child|"
    r"children|friends?|enemy|enemies|lost|stole|stolen|owed?|debts?|never|always|remember|forget|"
    r"lived?|from|work(ed)?|hurt|ill|sick|betrayed|saved|found|dreams?|wish|want|need|looking|"
    r"search(ing)?)\b",
    re.IGNORECASE,
)
#: Scripts without spaces have few "words": a sentence there is long enough from here on.
_LONG_ENOUGH = 8
_FEWEST_WORDS = 3


@dataclass(frozen=True, slots=True)
class Distilled:
    """What is worth remembering.

    Attributes:
        facts: of the player.
        summary: of all that was said so far; None if there is nothing to say.
    """

    facts: tuple[Draft, ...]
    summary: Draft | None


def by_rules(talk: Talk) -> Distilled:
    """Facts and summary of a talk, without a model."""
    facts = sorted(_facts(talk.lines), key=lambda fact: -fact.importance)[:MAX_FACTS]
    told = [_Sentence(text, importance_of(text)) for text in sentences(talk.summary)]
    told += [_Sentence(fact.text, fact.importance) for fact in facts]
    kept = sorted(range(len(told)), key=lambda at: -told[at].importance)[:_SUMMARY_SENTENCES]
    texts = dict.fromkeys(told[at].text for at in sorted(kept))
    return Distilled(tuple(facts), summary_of(talk, " ".join(texts)))


def summary_of(talk: Talk, text: str) -> Draft | None:
    """A summary as it is kept; None without words."""
    if not text:
        return None
    last = max(line.ts for line in talk.lines)
    return Draft(text[:MAX_SUMMARY], 1.0, last, frozenset([talk.owner.player]))


def importance_of(text: str) -> float:
    """What a sentence is worth, from 0 to 1; questions are worth nothing."""
    plain = text.replace("’", "'")
    words = _WORD.findall(plain)
    if text.rstrip("\"'”’»)").endswith(("?", "？")):
        return 0.0
    if len(words) < _FEWEST_WORDS and not (len(words) == 1 and len(text) >= _LONG_ENOUGH):
        return 0.0
    worth = _STATEMENT
    worth += _SELF * bool(_FIRST_PERSON.search(plain))
    worth += _NAME * bool(_NAME_INSIDE.search(text))
    worth += _NUMBER * any(word.isdigit() for word in words)
    worth += _WEIGHTY * bool(_HEAVY.search(plain))
    return min(worth, 1.0)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, each on one line."""
    for found in _SENTENCE.findall(text):
        clean = " ".join(found.split())
        if clean:
            yield clean


def words_of(texts: Iterable[str]) -> set[str]:
    """Words without case, and without the s that most often is a plural's."""
    return {word.casefold().rstrip("s") or word for text in texts for word in _WORD.findall(text)}


@dataclass(frozen=True, slots=True)
class _Sentence:
    text: str
    importance: float


def _facts(lines: Sequence[Spoken]) -> Iterator[Draft]:
    seen: set[str] = set()
    for line in lines:
        if line.own:
            continue
        for sentence in sentences(line.text):
            importance = importance_of(sentence)
            if importance > 0 and sentence.casefold() not in seen:
                seen.add(sentence.casefold())
                yield Draft(sentence[:MAX_FACT], importance, line.ts, line.present)
