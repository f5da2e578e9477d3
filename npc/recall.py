"""Which examples of a persona come to mind at a line.

All examples stand at the beginning of every prompt. A large model finds the one it needs there; a
small one follows what it read last. So the examples that share most with the line are told again
right before it.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

from npc.persona import Example

_WORD = re.compile(r"\w+")
_INSIDE = re.compile(r"(?<=[^\s.!?…] )\w\w+")
#: A word counts less where the example answers than where it asks.
_ANSWER = 0.5
#: What a line is about is most often a name in it.
_NAME = 3.0
#: Share of a line's weight that an example must have in common with it.
_LEAST = 0.35


class Recall:
    """The examples of one persona, ready to be searched."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = [(e, _words(e.player), _words(e.npc)) for e in examples]
        spread = Counter(word for _, asks, answers in self._examples for word in asks | answers)
        # What every example holds ("the", "dear") says nothing; what one holds, most.
        self._weights = {word: math.log((len(examples) + 1) / n) for word, n in spread.items()}
        for name in _names(examples):
            self._weights[name] *= _NAME
        self._unknown = math.log(len(examples) + 1)

    def best(self, text: str, most: int) -> list[Example]:
        """The examples closest to a line, the closest last; fewer than `most` if few are close."""
        line = {word: self._weights.get(word, self._unknown) for word in _words(text)}
        enough = _LEAST * sum(line.values())
        scored: list[tuple[float, int]] = []
        for at, (_, asks, answers) in enumerate(self._examples):
            score = sum(weight for word, weight in line.items() if word in asks)
            score += _ANSWER * sum(w for word, w in line.items() if word in answers - asks)
            if score > 0 and score >= enough:
                scored.append((score, at))
        scored.sort()
        return [self._examples[at][0] for _, at in scored[max(0, len(scored) - most) :]]


def _names(examples: Sequence[Example]) -> set[str]:
    """Words that have a capital though they begin no sentence."""
    inside = (word for e in examples for word in _INSIDE.findall(f"{e.player} {e.npc}"))
    return {name for word in inside if word[0].isupper() for name in _words(word)}


def _words(text: str) -> set[str]:
    """Words without case, and without the s that most often is a plural's."""
    return {word.casefold().rstrip("s") or word for word in _WORD.findall(text)}
