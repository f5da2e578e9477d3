"""What a reply may say: a JSON schema, a regular expression, a choice, or a Lark grammar.

A `Grammar` is plain data. It is checked for size and form here, and compiled for one model's tokens
by `engine.decoding.compiler`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, cast

from engine.errors import InvalidRequest

Kind = Literal["json_schema", "regex", "choice", "lark"]
#: All of them.
KINDS: frozenset[Kind] = frozenset({"json_schema", "regex", "choice", "lark"})

#: Longest source in characters: compiling one takes time and memory that grow with it.
MAX_SOURCE = 65_536
#: Deepest nesting of a schema; the compiler's own JSON reader ends at 127.
MAX_DEPTH = 60
#: Most definitions of a Lark grammar, and most different `$ref`s of a schema: the compiler follows
#: chains of them by recursion.
MAX_DEFINITIONS = 400
#: Most options of a choice.
MAX_OPTIONS = 2_000

# All of these read a text once, in time that grows with its length: nothing is given back to be
# tried again (`*+`), and what does not end is matched to where it stops.
#: Pieces of a Lark grammar in which anything may stand: strings, expressions, comments. The group
#: is empty where the mark at the end is missing.
_LARK_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*+("?)|/(?:[^/\\\n]|\\.)++(/?)|//[^\n]*+|#[^\n]*+')
#: What stands in brackets that hold no others.
_LARK_BRACKETS = re.compile(r"\[[^\[\]]*+(\])?")
_LARK_RULE = re.compile(
    r"^[^\S\n]*+[?!]?[A-Za-z_]\w*+\s*+(?:\.-?\d++)?\s*+(\[\])?\s*+:", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Grammar:
    """The texts a reply may consist of. Made by the constructors below, which check their input.

    Attributes:
        kind: what `source` is.
        source: JSON text of a schema or of a list of options, a regular expression, a Lark grammar.
    """

    kind: Kind
    source: str

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` for a source that is no text or too long."""
        if not isinstance(self.source, str):
            _refuse(f"a grammar's {self.kind} must be text, not {type(self.source).__name__}")
        if len(self.source) > MAX_SOURCE:
            _refuse(
                f"a grammar's {self.kind} has {len(self.source):,} characters, "
                f"the limit is {MAX_SOURCE:,}"
            )
        try:
            self.source.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"a grammar's {self.kind} is no valid Unicode: {error}") from error

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> "Grammar":
        """JSON that is valid under a schema (draft 2020-12), given as an object or as its text.

        Keywords that cannot be enforced while text is generated are refused when it is compiled.

        Raises:
            InvalidRequest: it is no JSON object, too long, nested too deeply, or has too many
                references.
        """
        try:
            source = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
            # Read before it is measured: a source that is too long is not read.
            grammar = cls("json_schema", source)
            parsed = json.loads(source, parse_constant=_no_constant)
        except (TypeError, ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            raise InvalidRequest(f"json_schema is no JSON: {reason}") from error
        if not isinstance(parsed, dict):
            _refuse(f"json_schema must be a JSON object, not {type(parsed).__name__}")
        if "x-guidance" in parsed:
            _refuse("json_schema must not hold x-guidance: it would change how schemas are read")
        _check_shape(parsed)
        return grammar

    @classmethod
    def json_object(cls) -> "Grammar":
        """Any JSON object."""
        return cls("json_schema", '{"type":"object"}')

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Texts that match a regular expression from beginning to end.

        The syntax is that of Rust's `regex` crate; there is no looking around and there are no
        back-references. `^` and `$` are not needed: the whole text is matched.
        """
        grammar = cls("regex", pattern)
        if not pattern:
            _refuse("regex must not be empty: it would match nothing but the empty reply")
        return grammar

    @classmethod
    def choice(cls, options: Iterable[str]) -> "Grammar":
        """Exactly one of `options`: non-empty, at most `MAX_OPTIONS` of them."""
        if isinstance(options, (str, bytes)) or not isinstance(options, Iterable):
            _refuse(f"choice must be several strings, not {type(options).__name__}")
        distinct = list(dict.fromkeys(options))
        if not distinct or not all(isinstance(option, str) and option for option in distinct):
            _refuse("choice must be one or more non-empty strings")
        if len(distinct) > MAX_OPTIONS:
            _refuse(f"choice has {len(distinct):,} options, the limit is {MAX_OPTIONS:,}")
        try:
            "".join(distinct).encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"an option of choice is no valid Unicode: {error}") from error
        return cls("choice", json.dumps(distinct))

    @classmethod
    def lark(cls, text: str) -> "Grammar":
        """Texts of a context-free grammar in Lark's notation, with `start` as its first rule.

        Rules may be recursive. Control tokens (`<name>`) and rule attributes (`rule[...]:`) are
        refused: what is generated is text, and how it is sampled is said by `SamplingParams`.
        """
        grammar = cls("lark", text)
        if any("" in literal.groups() for literal in _LARK_LITERAL.finditer(text)):
            _refuse("lark holds a string or an expression that does not end on its line")
        bare = _LARK_LITERAL.sub('""', text)
        if "<" in bare:
            _refuse("lark must not name control tokens (<...>): a reply is text")
        rules = _LARK_RULE.findall(_LARK_BRACKETS.sub(_emptied, bare))
        if any(rules):
            _refuse("lark rule attributes (rule[...]:) are not supported")
        if len(rules) > MAX_DEFINITIONS:
            _refuse(f"lark has {len(rules):,} definitions, the limit is {MAX_DEFINITIONS:,}")
        return grammar


def _emptied(brackets: re.Match[str]) -> str:
    return "[]" if brackets[1] else brackets[0]


def _check_shape(schema: dict[str, Any]) -> None:
    """Refuse schemas whose nesting, or chain of references, is too deep to follow."""
    references: set[str] = set()
    level: list[Any] = [schema]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            _refuse(f"json_schema is nested more than {MAX_DEPTH} levels deep")
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                if isinstance(value.get("$ref"), str):
                    references.add(value["$ref"])
                below += value.values()
            elif isinstance(value, list):
                below += value
        level = [value for value in below if isinstance(value, (dict, list))]
    if len(references) > MAX_DEFINITIONS:
        _refuse(
            f"json_schema has {len(references):,} different $refs, the limit is {MAX_DEFINITIONS:,}"
        )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _refuse(problem: str) -> NoReturn:
    raise InvalidRequest(problem)


def options_of(grammar: Grammar) -> list[str]:
    """The options of a choice."""
    return cast("list[str]", json.loads(grammar.source))
