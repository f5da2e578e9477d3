"""Rules for what NPCs may say: a JSON file, read and checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from npc.safety.automaton import Automaton, Search
from npc.safety.patterns import LONGEST, PatternError
from npc.safety.reading import Reading

#: A list of all bad words of all languages is smaller.
MAX_BYTES = 4 * 1024 * 1024
MASK = "*"

Action = Literal["block", "mask", "replace", "regenerate"]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST)]


class RulesError(ValueError):
    """A file of rules cannot be used.

    Attributes:
        file: which.
        problem: what is wrong in it, and where.
    """

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file = file
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to words that were found.

    Attributes:
        id: for people and counters.
        action: `block` ends the speech before them; `regenerate` lets the NPC find other words from
            there on; `mask` and `replace` write something else instead.
        text: what `replace` writes, and the character `mask` writes for each that is no space.
    """

    id: str
    action: Action
    text: str = ""

    @property
    def ends(self) -> bool:
        """Whether the speech does not go on after it."""
        return self.action in ("block", "regenerate")

    def written(self, found: str) -> str:
        """What stands for the words."""
        if self.action == "mask":
            return "".join(char if char.isspace() else self.text for char in found)
        return self.text


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules, the first of which counts most, and the automaton that finds their words."""

    rules: tuple[Rule, ...]
    automaton: Automaton

    @classmethod
    def of(cls, rules: Sequence[tuple[Rule, Search]]) -> "RuleSet":
        """Compile rules.

        Raises:
            PatternError: one of them cannot be used; the message begins with its id.
        """
        try:
            return cls(tuple(r for r, _ in rules), Automaton([search for _, search in rules]))
        except PatternError:
            for rule, search in rules:  # each by itself, to know whose mistake it is
                try:
                    Automaton([search])
                except PatternError as error:
                    raise PatternError(f"{rule.id}: {error}") from None
            raise


NO_RULES = RuleSet.of(())


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"text": "with"}):
    id: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")]
    action: Action
    words: tuple[Text, ...] = ()
    patterns: tuple[Text, ...] = ()
    text: Annotated[str, msgspec.Meta(max_length=LONGEST)] | None = None
    whole_words: bool = True
    ignore: tuple[Literal["case", "diacritics", "leet"], ...] = ("case", "diacritics")

    def problem(self) -> str | None:
        """What is wrong beside types."""
        if not self.words and not self.patterns:
            return "needs words or patterns"
        if self.patterns and "leet" in self.ignore:
            return "patterns cannot be read as leet: a digit would be a letter in them"
        if self.action == "mask" and self.text is not None and len(self.text) != 1:
            return f"with: mask writes one character, not {self.text!r}"
        if self.action in ("block", "regenerate") and self.text is not None:
            return f"with: {self.action} writes nothing"
        return None

    def read(self) -> tuple[Rule, Search]:
        text = MASK if self.text is None and self.action == "mask" else self.text or ""
        reading = Reading(**{name: name in self.ignore for name in ("case", "diacritics", "leet")})
        search = Search(self.words, self.patterns, reading, self.whole_words)
        return Rule(self.id, self.action, text), search


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[_Entry, ...]


def load_rules(file: Path) -> RuleSet:
    """Read a file of rules.

    Raises:
        RulesError: it cannot be read, or the first thing that is wrong in it.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES} bytes")
        return parse_rules(file.read_bytes())
    except OSError as error:
        raise RulesError(file, error.strerror or str(error)) from None
    except ValueError as error:
        raise RulesError(file, str(error)) from None


def parse_rules(data: bytes) -> RuleSet:
    """The rules that JSON text says; raises `ValueError` that says what is wrong with them."""
    try:
        entries = msgspec.json.decode(data, type=_File).rules
    except msgspec.DecodeError as error:  # wrong types, too
        raise ValueError(str(error)) from None
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        problem = f"the id {entry.id} is taken" if entry.id in seen else entry.problem()
        if problem is not None:
            raise ValueError(f"$.rules[{number}] ({entry.id}): {problem}")
        seen.add(entry.id)
    return RuleSet.of([entry.read() for entry in entries])
