"""Filters what an NPC says while it is being said.

What may still become a match is held back until it is decided, and nothing else is: no part of a
filtered word is ever shown, and clean text waits for the longest pattern at most. Matches are the
leftmost, of these the longest; where several rules find the same, the first one counts. How the
text is cut into pieces makes no difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from npc.safety.automaton import State
from npc.safety.reading import is_letter
from npc.safety.rules import Rule, RuleSet


@dataclass(frozen=True, slots=True)
class Passed:
    """What a piece of text released.

    Attributes:
        text: may be shown.
        hits: rules that found something, in order.
        stop: the rule that ends the speech here; what the filter is fed after that goes nowhere.
        found: the words it found.
    """

    text: str
    hits: tuple[Rule, ...] = ()
    stop: Rule | None = None
    found: str = ""


class _Candidate:
    """A place at which a match may begin.

    Attributes:
        states: in each rule set, where the text from here on is; None: nowhere.
        end, rank: of the longest match so far, and the numbers of its rule set and rule.
    """

    __slots__ = ("end", "rank", "start", "states")

    def __init__(self, start: int, states: list[State | None]) -> None:
        self.start = start
        self.states = states
        self.end = start
        self.rank: tuple[int, int] | None = None

    @property
    def undecided(self) -> bool:
        return any(state is not None for state in self.states)

    def take(self, end: int, rank: tuple[int, int]) -> None:
        if self.rank is None or end > self.end or (end == self.end and rank < self.rank):
            self.end, self.rank = end, rank


class SpeechFilter:
    """One reply on its way through some rule sets, of which the first counts most.

    Attributes:
        held: text that is not decided yet.
    """

    def __init__(self, sets: Sequence[RuleSet], said: str = "") -> None:
        """`said` was shown before: a match may begin in it, but it is not taken back."""
        self._sets = [each for each in sets if each.rules]
        self._candidates: list[_Candidate] = []
        self._next = 0  # place of the next character
        self._in_word = self._stopped = False
        for char in said if self._sets else "":
            self._advance(char)
        self._candidates = [each for each in self._candidates if each.undecided]
        self._shown = self._next  # place of the first character that is neither shown nor dropped
        self.held = ""

    def feed(self, text: str) -> Passed:
        """Take in more of the reply."""
        if self._stopped or not self._sets:
            return Passed("" if self._stopped else text)
        self.held += text
        for char in text:
            self._advance(char)
        return self._settle()

    def finish(self) -> Passed:
        """The reply is at its end: what was held back is decided."""
        for candidate in self._candidates:
            for number, state in enumerate(candidate.states):
                if state is not None and state.found_whole is not None:
                    candidate.take(self._next, (number, state.found_whole))
                candidate.states[number] = None
        self._candidates = [each for each in self._candidates if each.rank is not None]
        return self._settle()

    def _advance(self, char: str) -> None:
        """Let all candidates see one more character, which may begin a new one."""
        place, letter = self._next, is_letter(char)
        self._next += 1
        for candidate in self._candidates:
            for number, state in enumerate(candidate.states):
                if state is None:
                    continue
                if state.found_whole is not None and not letter:
                    candidate.take(place, (number, state.found_whole))
                automaton = self._sets[number].automaton
                near = place - candidate.start < automaton.reach
                self._enter(candidate, number, automaton.step(state, char) if near else None)
        begun = [each.automaton.begin(char, inside_word=self._in_word) for each in self._sets]
        if any(state is not None for state in begun):
            candidate = _Candidate(place, [None] * len(begun))
            for number, state in enumerate(begun):
                self._enter(candidate, number, state)
            self._candidates.append(candidate)
        self._candidates = [c for c in self._candidates if c.rank is not None or c.undecided]
        self._in_word = letter

    def _enter(self, candidate: _Candidate, number: int, state: State | None) -> None:
        if state is not None and state.found is not None:
            candidate.take(self._next, (number, state.found))
        candidate.states[number] = None if state is None or state.final else state

    def _settle(self) -> Passed:
        """Release what is decided."""
        released: list[str] = []
        hits: list[Rule] = []
        while self._candidates and not self._candidates[0].undecided:
            match = self._candidates[0]
            assert match.rank is not None
            self._candidates = [c for c in self._candidates[1:] if c.start >= match.end]
            if match.end <= self._shown:
                continue  # all of it was said before
            released.append(self._cut(match.start))
            found = self._cut(match.end)
            rules, number = match.rank
            rule = self._sets[rules].rules[number]
            hits.append(rule)
            if rule.ends:
                self._stopped, self.held = True, ""
                return Passed("".join(released), tuple(hits), rule, found)
            released.append(rule.written(found))
        released.append(self._cut(self._candidates[0].start if self._candidates else self._next))
        return Passed("".join(released), tuple(hits))

    def _cut(self, place: int) -> str:
        """Take what is held before a place."""
        count = max(place - self._shown, 0)
        text, self.held = self.held[:count], self.held[count:]
        self._shown += count
        return text
