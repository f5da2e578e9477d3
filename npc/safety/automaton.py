"""One automaton for many words and patterns: which of them a text, read from one place on, may
still become.

It has no loops, since all patterns are bounded, and its states are made when they are first met.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from npc.safety.patterns import (
    LONGEST,
    Chars,
    Choice,
    Part,
    PatternError,
    Repeat,
    Row,
    length,
    parse,
)
from npc.safety.reading import Reading, readings

#: Ways from place to place of all patterns together: some tens of MB, and a thousand times what a
#: list needs. Ways and not places, since a few hundred characters say millions of them.
_MOST_WAYS = 500_000
#: Steps that are kept; with more, making them begins anew.
_MOST_STEPS = 200_000


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for.

    Attributes:
        words: as they are; white space matches white space.
        patterns: in the syntax of `npc.safety.patterns`.
        reading: what makes no difference. Patterns are never read as `leet`.
        whole_words: only where no letter or digit stands before or after.
    """

    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)
    whole_words: bool = True


class _Node:
    """A place in some patterns: what may come next, and which searches are found here."""

    __slots__ = ("classes", "edges", "found", "reading", "whole")

    def __init__(self, reading: Reading, whole: bool) -> None:
        self.reading = reading
        self.whole = whole
        self.edges: dict[str, list[_Node]] = {}
        self.classes: list[tuple[Chars, _Node]] = []
        self.found: int | None = None

    def after(self, symbol: str) -> "list[_Node]":
        nodes = list(self.edges.get(symbol, ()))
        case = self.reading.case
        nodes += [node for chars, node in self.classes if chars.matches(symbol, case=case)]
        return nodes


class State:
    """Where a text may be in all patterns at once.

    Attributes:
        found: number of the first search that ends here, None if none does.
        found_whole: the same, of searches that end here only if no letter follows.
        final: whether nothing longer can be found.
    """

    __slots__ = ("final", "found", "found_whole", "nodes", "steps")

    def __init__(self, nodes: frozenset[_Node]) -> None:
        self.nodes = nodes
        self.found = min(
            (n.found for n in nodes if n.found is not None and not n.whole), default=None
        )
        self.found_whole = min(
            (n.found for n in nodes if n.found is not None and n.whole), default=None
        )
        self.final = self.found_whole is None and not any(n.edges or n.classes for n in nodes)
        self.steps: dict[str, State | None] = {}


class Automaton:
    """Compiled searches, shared by all streams.

    Attributes:
        longest: characters of the longest match; marks and invisible characters between them do
            not count.
        reach: characters of a text that a match may span with those.
    """

    def __init__(self, searches: Sequence[Search]) -> None:
        """
        Raises:
            PatternError: one of them cannot be used.
        """
        self.longest = 0
        self._size = self._steps = 0
        self._roots: dict[tuple[Reading, bool], _Node] = {}
        self._states: dict[frozenset[_Node], State] = {}
        for number, search in enumerate(searches):
            self._add_words(number, search)
        for number, search in enumerate(searches):
            self._add_patterns(number, search)
        marks = any(reading.diacritics for reading, _ in self._roots)
        self.reach = self.longest * (3 if marks else 1)
        self._inside = frozenset(r for (_, whole), r in self._roots.items() if not whole)
        self._between = frozenset(self._roots.values())

    def begin(self, char: str, *, inside_word: bool) -> State | None:
        """The state after the first character of a possible match; None if it begins none."""
        state = self.step(self._state(self._inside if inside_word else self._between), char)
        if state is not None and state.nodes & self._between:
            # What may be passed over begins nothing.
            rest = state.nodes - self._between
            return self._state(rest) if rest else None
        return state

    def step(self, state: State, char: str) -> State | None:
        """The state after one more character; None if nothing can be found any more."""
        try:
            return state.steps[char]
        except KeyError:
            if self._steps >= _MOST_STEPS:
                self._states.clear()
                self._steps = 0
            self._steps += 1
            following = state.steps[char] = self._make_step(state, char)
            return following

    def _make_step(self, state: State, char: str) -> State | None:
        nodes: set[_Node] = set()
        for node in state.nodes:
            for read in readings(char, node.reading):
                reached = [node]
                for symbol in read:
                    reached = [after for at in reached for after in at.after(symbol)]
                nodes.update(reached)
        return self._state(frozenset(nodes)) if nodes else None

    def _state(self, nodes: frozenset[_Node]) -> State:
        state = self._states.get(nodes)
        if state is None:
            state = self._states[nodes] = State(nodes)
        return state

    def _add_words(self, number: int, search: Search) -> None:
        """Words share their beginnings. They come before all patterns, whose nodes are their own:
        what follows in a pattern must not follow in a word.
        """
        for word in search.words:
            folded = " ".join(search.reading.fold(word).split())
            if not folded:
                raise PatternError(f"{word[:80]!r} has no letter in it")
            if len(folded) > LONGEST:
                raise PatternError(f"{word[:80]!r} is longer than {LONGEST} characters")
            self.longest = max(self.longest, len(folded))
            node = self._root(search.reading, search.whole_words)
            for symbol in folded:
                shared = node.edges.setdefault(symbol, [])
                if not shared:
                    self._count_ways(1)
                    shared.append(_Node(node.reading, node.whole))
                node = shared[0]
            self._find(number, {node})

    def _add_patterns(self, number: int, search: Search) -> None:
        reading = replace(search.reading, leet=False)
        for pattern in search.patterns:
            part = parse(pattern, reading.fold)
            self.longest = max(self.longest, length(part)[1])
            root = self._root(reading, search.whole_words)
            self._find(number, self._extend({root}, part))

    def _find(self, number: int, nodes: set[_Node]) -> None:
        for node in nodes:
            node.found = number if node.found is None else min(node.found, number)

    def _root(self, reading: Reading, whole: bool) -> _Node:
        key = reading, whole
        if key not in self._roots:
            self._roots[key] = _Node(reading, whole)
        return self._roots[key]

    def _extend(self, nodes: set[_Node], part: Part) -> set[_Node]:
        """Let a part follow all of `nodes`. Returns where it may end."""
        match part:
            case str():
                for symbol in part:
                    after = self._after(nodes)
                    for node in nodes:
                        node.edges.setdefault(symbol, []).append(after)
                    nodes = {after}
                return nodes
            case Chars():
                after = self._after(nodes)
                for node in nodes:
                    node.classes.append((part, after))
                return {after}
            case Row(parts):
                for each in parts:
                    nodes = self._extend(nodes, each)
                return nodes
            case Choice(parts):
                return {node for each in parts for node in self._extend(nodes, each)}
            case Repeat(inner, least, most):
                ends = set(nodes) if not least else set()
                for times in range(1, most + 1):
                    nodes = self._extend(nodes, inner)
                    if times >= least:
                        ends |= nodes
                return ends

    def _after(self, nodes: set[_Node]) -> _Node:
        """A new place, which is about to follow all of these."""
        self._count_ways(len(nodes))
        like = next(iter(nodes))
        return _Node(like.reading, like.whole)

    def _count_ways(self, more: int) -> None:
        self._size += more
        if self._size > _MOST_WAYS:
            raise PatternError(
                f"the rules have more than {_MOST_WAYS} ways from one character to the next: "
                "repeat fewer choices and optional parts"
            )
