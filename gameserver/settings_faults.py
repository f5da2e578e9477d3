"""What is wrong with settings, in one line that names the key, its value and what it takes.

`msgspec` decides whether settings can be used. This looks at what they are made of, and says it in
the words of whoever wrote them.
"""

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import inspect

#: Whole numbers are below these, as floats and as they are.
_MOST_FLOAT, _MOST_INT = 2**53, 2**63
#: Characters of a value that are shown.
_SHOWN = 60
#: What the patterns of settings mean. One that is not listed is shown as it is.
_PATTERNS = {
    r"\A[A-Za-z0-9_.-]{1,64}\Z": "1 to 64 letters, digits, '_', '.' or '-'",
    r"\A[A-Z]{2}\Z": "two capital letters",
    r"\A[\w.-]{1,64}(/[\w.-]{1,64}){0,3}\Z": "up to four words with '/' between them",
}
#: What is cut off a word of that many characters.
_LONG = re.compile(rf"(?<=\S{{{_SHOWN}}})\S+")
#: How msgspec says where a value is that contradicts another.
_PLACE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`\Z")


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake.

    Attributes:
        path: of the key, as `limits.say_chars`; "" for the whole.
        problem: what is wrong with it.
    """

    path: str
    problem: str


def fault_in(raw: Any, settings: type, error: Exception) -> Fault:
    """The first mistake in what should be converted to `settings`, and was refused with `error`."""
    found = next(_faults(raw, inspect.type_info(settings), ""), None)
    if found is not None:
        return found
    # Each value is right by itself, so two contradict each other: the settings say which.
    place = _PLACE.search(str(error))
    problem = _LONG.sub("…", str(error)[: place.start()] if place else str(error))
    path = re.sub(r"\[\.{3}\]", "", place["path"]) if place else ""
    name, _, rest = problem.partition(" ")
    named = name.rstrip(":")
    if not rest.startswith("and ") and named in _below(raw, path):
        return Fault(f"{path}.{named}".strip("."), rest)
    return Fault(path, problem)


def _below(raw: Any, path: str) -> Mapping[str, Any]:
    """What was written below a key; nothing where that is within a list."""
    for name in path.split(".") if path else ():
        raw = raw.get(name) if isinstance(raw, Mapping) else None
    return raw if isinstance(raw, Mapping) else {}


def _faults(value: Any, kind: inspect.Type, path: str) -> Iterator[Fault]:
    if isinstance(kind, inspect.UnionType):
        yield from _faults_of_union(value, kind, path)
    elif isinstance(kind, inspect.StructType):
        yield from _faults_of_struct(value, kind, path)
    elif isinstance(kind, inspect.VarTupleType) and isinstance(value, list | tuple):
        if len(value) < (kind.min_length or 0):
            yield _wrong(value, kind, path)
        for number, item in enumerate(value):
            yield from _faults(item, kind.item_type, f"{path}[{number}]")
    elif isinstance(kind, inspect.DictType) and isinstance(value, dict):
        for name, item in value.items():
            if not _fits(name, kind.key_type):
                yield Fault(path, f"{shown(name)} is no name here; it takes {takes(kind.key_type)}")
            yield from _faults(item, kind.value_type, f"{path}.{name}")
    elif not _fits(value, kind):
        yield _wrong(value, kind, path)


def _faults_of_union(value: Any, kind: inspect.UnionType, path: str) -> Iterator[Fault]:
    """Faults of what is left out, or is of the kind that can be told apart from that."""
    if value is None and kind.includes_none:
        return
    given = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    holds = isinstance(value, Mapping | list | tuple)
    if len(given) == 1 and holds and not _is_leaf(given[0]):
        yield from _faults(value, given[0], path)
    elif not any(_fits(value, each) for each in given):
        yield _wrong(value, kind, path)


def _faults_of_struct(value: Any, kind: inspect.StructType, path: str) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        yield _wrong(value, kind, path)
        return
    fields = {field.encode_name: field for field in kind.fields}
    for name, item in value.items():
        below = f"{path}.{name}" if path else str(name)
        if name not in fields:
            yield Fault(below, _unknown(name, list(fields)))
        else:
            yield from _faults(item, fields[name].type, below)
    for field in fields.values():
        if field.required and field.encode_name not in value:
            yield Fault(path, f"{field.encode_name} is missing; it takes {takes(field.type)}")


def _unknown(name: Any, known: list[str]) -> str:
    near = difflib.get_close_matches(str(name), known)
    if near:
        return f"there is no such setting; did you mean {' or '.join(near)}?"
    return f"there is no such setting; there are {', '.join(known)}"


def _wrong(value: Any, kind: inspect.Type, path: str) -> Fault:
    return Fault(path, f"{shown(value)} will not do; it takes {takes(kind)}")


def printable(text: str) -> str:
    """Text for a terminal: on one line, where whatever is no visible character shows as U+FFFD."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def shown(value: Any) -> str:
    """A value as it would be written in a settings file, on one line and cut if it is long."""
    if isinstance(value, float) and not math.isfinite(value):
        return f".{value}" if value > 0 or math.isnan(value) else f"-.{-value}"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = "a value within itself"
    text = printable(text[: _SHOWN + 1])
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def takes(kind: inspect.Type) -> str:
    """What a setting takes, in words."""
    match kind:
        case inspect.UnionType():
            given = [takes(each) for each in kind.types if not isinstance(each, inspect.NoneType)]
            return " or ".join([*given, *(["null"] if kind.includes_none else [])])
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_range(kind)}"
        case inspect.FloatType():
            return f"a number{_range(kind)}"
        case inspect.StrType():
            return _text(kind)
        case inspect.VarTupleType():
            least = ", at least one of them" if kind.min_length else ""
            return f"a list, each item {takes(kind.item_type)}{least}"
        case inspect.StructType():
            return f"an object of {', '.join(field.encode_name for field in kind.fields)}"
        case _:
            return "an object of names and values"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge:g} to {kind.le:g}"
    bounds = [
        *([] if kind.ge is None else [f"of at least {kind.ge:g}"]),
        *([] if kind.gt is None else [f"above {kind.gt:g}"]),
        *([] if kind.le is None else [f"of at most {kind.le:g}"]),
        *([] if kind.lt is None else [f"below {kind.lt:g}"]),
    ]
    return f" {' and '.join(bounds)}" if bounds else ""


def _text(kind: inspect.StrType) -> str:
    if kind.pattern is not None:
        return _PATTERNS.get(kind.pattern, f"text like {kind.pattern}")
    if kind.max_length is not None:
        return f"text of {kind.min_length or 0} to {kind.max_length} characters"
    return "text that is not empty" if kind.min_length else "text"


def _is_leaf(kind: inspect.Type) -> bool:
    return not isinstance(kind, inspect.StructType | inspect.VarTupleType | inspect.DictType)


def _fits(value: Any, kind: inspect.Type) -> bool:
    """Whether a value is of a kind that holds no others."""
    match kind:
        case inspect.AnyType():
            return True
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.LiteralType():
            return any(type(value) is type(each) and value == each for each in kind.values)
        case inspect.IntType():
            return _is_whole(value) and _within(value, kind)
        case inspect.FloatType():
            return type(value) in (int, float) and _within(value, kind)
        case inspect.StrType():
            return isinstance(value, str) and _is_text(value, kind)
        case _:
            return False


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number that fits a machine's word; 2.0 is one, too."""
    if type(value) is float:
        return value.is_integer() and abs(value) < _MOST_FLOAT
    return type(value) is int and abs(value) < _MOST_INT


def _within(value: float, kind: inspect.IntType | inspect.FloatType) -> bool:
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
    )


def _is_text(value: str, kind: inspect.StrType) -> bool:
    longest = len(value) if kind.max_length is None else kind.max_length
    right = (kind.min_length or 0) <= len(value) <= longest
    return right and (kind.pattern is None or re.search(kind.pattern, value) is not None)
