"""Patterns of bounded length: the part of regular expressions a stream can be searched with.

Characters, `.`, classes (`[a-z]`, `[^ ]`, `\\d`, `\\w`, `\\s`), groups, `|`, `?`, `{n}`, `{m,n}`.
Whatever has no longest match (`*`, `+`, `{m,}`) is refused: text that may belong to it would be
held back for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

#: Longest match of one pattern, in characters: nothing is held back longer than that.
LONGEST = 200
_DEEPEST = 20
_CLASSES = {"d": "0123456789"}
_ESCAPES = {"n": "\n", "t": "\t"}


class PatternError(ValueError):
    """A pattern cannot be used; the message says where and what would be right."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of some.

    Attributes:
        ranges: inclusive, of code points.
        kinds: of `w` (letters, digits, `_`) and `s` (white space).
        inverted: any other character than these.
    """

    ranges: tuple[tuple[str, str], ...] = ()
    kinds: str = ""
    inverted: bool = False

    def matches(self, symbol: str, *, case: bool) -> bool:
        """Whether this is one of them; with `case`, in upper case or lower."""
        forms = {symbol, symbol.upper()} if case and len(symbol.upper()) == 1 else {symbol}
        listed = any(low <= form <= high for form in forms for low, high in self.ranges)
        word = "w" in self.kinds and (symbol.isalnum() or symbol == "_")
        space = "s" in self.kinds and symbol.isspace()
        return (listed or word or space) is not self.inverted


@dataclass(frozen=True, slots=True)
class Row:
    """Parts one after the other."""

    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some parts."""

    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part `least` to `most` times."""

    part: "Part"
    least: int
    most: int


#: A string stands for its characters, of which there may be none.
Part = str | Chars | Row | Choice | Repeat


def length(part: Part) -> tuple[int, int]:
    """Characters of the shortest and the longest match."""
    match part:
        case str():
            return len(part), len(part)
        case Chars():
            return 1, 1
        case Row(parts):
            lengths = [length(each) for each in parts]
            return sum(low for low, _ in lengths), sum(high for _, high in lengths)
        case Choice(parts):
            lengths = [length(each) for each in parts]
            return min(low for low, _ in lengths), max(high for _, high in lengths)
        case Repeat(inner, least, most):
            low, high = length(inner)
            return low * least, high * most


def _as_it_is(char: str) -> str:
    return char


def parse(pattern: str, fold: Callable[[str], str] = _as_it_is) -> Part:
    """A pattern as a tree, each of its characters replaced by what `fold` makes of it. The ends of
    ranges stay as they are.

    Raises:
        PatternError: it is not of this syntax, matches nothing at all, or more than `LONGEST`
            characters.
    """
    parser = _Parser(pattern, fold)
    part = parser.choice(0)
    if not parser.done:
        parser.fail("this bracket closes nothing")
    shortest, longest = length(part)
    if not shortest:
        raise PatternError(f"{pattern[:80]!r} matches the empty text")
    if longest > LONGEST:
        raise PatternError(
            f"{pattern[:80]!r} matches up to {longest} characters, the most is {LONGEST}"
        )
    return part


class _Parser:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str, fold: Callable[[str], str]) -> None:
        self._pattern = pattern
        self._fold = fold
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at == len(self._pattern)

    def fail(self, problem: str) -> NoReturn:
        raise PatternError(f"{self._pattern[:80]!r}, character {self._at + 1}: {problem}")

    def choice(self, depth: int) -> Part:
        if depth > _DEEPEST:
            self.fail(f"groups are nested deeper than {_DEEPEST}")
        rows = [self._row(depth)]
        while self._take("|"):
            rows.append(self._row(depth))
        return rows[0] if len(rows) == 1 else Choice(tuple(rows))

    def _row(self, depth: int) -> Part:
        parts: list[Part] = []
        while not self.done and self._peek() not in "|)":
            parts.append(self._repeated(self._atom(depth)))
        return Row(tuple(parts))

    def _atom(self, depth: int) -> Part:
        char = self._next()
        if char == "(":
            if self._take("?") and not self._take(":"):
                self.fail("only (…) and (?:…) are known")
            part = self.choice(depth + 1)
            if not self._take(")"):
                self.fail("a group is not closed")
            return part
        if char == "[":
            return self._class()
        if char == "\\":
            escaped = self._escape()
            return self._fold(escaped) if isinstance(escaped, str) else escaped
        if char == ".":
            return Chars(inverted=True)
        if char in "*+?{":
            self.fail(f"there is nothing before {char!r} to repeat")
        if char in "^$":
            self.fail(f"{char!r} is not known; write \\{char} for the character")
        return self._fold(char)

    def _repeated(self, part: Part) -> Part:
        if self._take("?"):
            return Repeat(part, 0, 1)
        if not self.done and self._peek() in "*+":
            self.fail(f"{self._peek()!r} has no longest match; write {{0,20}} or the like")
        if not self._take("{"):
            return part
        if length(part)[1] == 0:
            # Repeated again and again it takes for ever and stays empty.
            self.fail("the empty text cannot be repeated")
        least = most = self._number()
        if self._take(","):
            if self._take("}"):
                self.fail("{m,} has no longest match; write {m,n}")
            most = self._number()
        if not self._take("}"):
            self.fail("expected }")
        if not least <= most <= LONGEST or not most:
            self.fail(f"a part may be there {{m,n}} times, m <= n and 1 <= n <= {LONGEST}")
        return Repeat(part, least, most)

    def _class(self) -> Part:
        inverted = self._take("^")
        ranges: list[tuple[str, str]] = []
        kinds = ""
        while not self._take("]"):
            low = self._member()
            if isinstance(low, Chars):
                ranges += low.ranges
                kinds += low.kinds
                continue
            if self._pattern[self._at : self._at + 1] == "-" and self._after() != "]":
                self._next()
                last = self._member()
                if not isinstance(last, str) or last < low:
                    self.fail("a range ends before it begins")
                ranges.append((low, last))
            else:
                ranges += [(each, each) for each in self._fold(low)]
        if not ranges and not kinds:
            self.fail("a class without characters")
        return Chars(tuple(ranges), kinds, inverted)

    def _member(self) -> str | Chars:
        char = self._next()
        return self._escape() if char == "\\" else char

    def _escape(self) -> str | Chars:
        char = self._next()
        if char in _CLASSES:
            return Chars(tuple((each, each) for each in _CLASSES[char]))
        if char in "ws":
            return Chars(kinds=char)
        if char.isalnum():
            if char not in _ESCAPES:
                self.fail(f"\\{char} is not known")
            return _ESCAPES[char]
        return char

    def _number(self) -> int:
        begin = self._at
        while not self.done and self._peek() in "0123456789" and self._at - begin < 4:
            self._at += 1
        if begin == self._at:
            self.fail("expected a number")
        return int(self._pattern[begin : self._at])

    def _peek(self) -> str:
        return self._pattern[self._at]

    def _after(self) -> str:
        return self._pattern[self._at + 1 : self._at + 2]

    def _next(self) -> str:
        if self.done:
            self.fail("the pattern ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _take(self, char: str) -> bool:
        if self._pattern.startswith(char, self._at):
            self._at += 1
            return True
        return False
