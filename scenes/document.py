"""YAML that people write, read field by field; every complaint names file, line and field.

PyYAML's safe loader builds the node tree and nothing else: values are taken from nodes here,
because only nodes know their line. Where libyaml is there it reads ten times as fast; what it
complains about is read again by the loader in Python, whose complaints are the same everywhere.
"""

import difflib
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import yaml

#: Ids end up in messages, topics and file names.
ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: A thousand entries of lore fit; a larger file is a mistake or an attack.
MAX_BYTES = 1024 * 1024
#: Deepest nesting; ours are three levels deep, and the parser recurses.
MAX_DEPTH = 16
_Loader = type[yaml.SafeLoader] | type[yaml.CSafeLoader]
_FASTEST: _Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

Scalar = str | bool | int | float
#: What JSON can say.
Data = dict[str, Any] | list[Any] | Scalar | None
Word = TypeVar("Word", bound=str)
Entry = TypeVar("Entry")


class PackError(ValueError):
    """A scene pack or persona cannot be used.

    Attributes:
        file: where the mistake is.
        line: in which line, from 1; 0 if it concerns the whole file.
        field: in which field, dotted from the top; "" if it concerns the whole file.
        problem: what is wrong and what would be right.
    """

    def __init__(self, file: Path, line: int, field: str, problem: str) -> None:
        self.file = file
        self.line = line
        self.field = field
        self.problem = problem
        place = f"{file}:{line}" if line else str(file)
        super().__init__(f"{place}: {field}: {problem}" if field else f"{place}: {problem}")


class Section:
    """One YAML mapping that is being read.

    Each reader takes one field; `finish` complains about fields that nobody took. A reader with a
    default returns it if the field is absent, one without complains.
    """

    def __init__(self, file: Path, node: yaml.MappingNode, name: str = "") -> None:
        self.file = file
        self.line = _line(node)
        self._mark = node.start_mark
        self._name = name
        self._fields: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        self._taken: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(_line(key), "", "field names must be plain words")
            if key.value in self._fields:
                first = _line(self._fields[key.value][0])
                self._refuse(_line(key), key.value, f"appears twice, first in line {first}")
            self._fields[key.value] = (key, value)

    def line_of(self, field: str) -> int:
        """The line a field is in; the section's own if it is absent."""
        return _line(self._fields[field][0]) if field in self._fields else self.line

    def fail(self, field: str, problem: str, line: int = 0) -> NoReturn:
        """Raise `PackError` about a field."""
        self._refuse(line or self.line_of(field), field, problem)

    def text(self, field: str, limit: int, default: str | None = None) -> str:
        """Text of at most `limit` characters, trimmed, not empty."""
        node = self._take(field, required=default is None)
        if node is None:
            return default or ""
        return self._text(field, node, limit)

    def name(self, field: str, limit: int) -> str:
        """Text on one line without a colon, so that a prompt can put `name:` before a line."""
        name = self.text(field, limit)
        if "\n" in name or ":" in name:
            self.fail(field, "must be on one line and without a colon")
        return name

    def id(self, field: str) -> str:
        """An id: 1 to 64 letters, digits, `_`, `.` and `-`."""
        value = self.text(field, 1000)
        self.check_id(field, value)
        return value

    def check_id(self, field: str, value: str, line: int = 0) -> None:
        """Complain unless `value` is an id."""
        if not ID.fullmatch(value):
            self.fail(field, f"{value[:80]!r} must be 1 to 64 of A-Z a-z 0-9 _ . -", line)

    def choice(self, field: str, allowed: Collection[Word], default: Word | None = None) -> Word:
        """One of a few words."""
        value = self.text(field, 1000, default)
        word = next((word for word in allowed if word == value), None)
        if word is None:
            self.fail(field, f"{value[:80]!r} must be one of {', '.join(allowed)}")
        return word

    def number(self, field: str, least: int, most: int, default: int) -> int:
        """A whole number from `least` to `most`."""
        node = self._take(field, required=False)
        if node is None:
            return default
        value = _scalar(node)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.fail(field, f"must be a whole number from {least} to {most}, not {_kind(node)}")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """true or false."""
        node = self._take(field, required=False)
        if node is None:
            return default
        value = _scalar(node)
        if not isinstance(value, bool):
            self.fail(field, f"must be true or false, not {_kind(node)}")
        return value

    def texts(self, field: str, most: int, limit: int) -> list[tuple[int, str]]:
        """A list of texts, each with its line; absent means empty."""
        return [
            (_line(item), self._text(f"{field}[{at}]", item, limit))
            for at, item in enumerate(self._items(field, most))
        ]

    def sections(self, field: str, most: int) -> list["Section"]:
        """A list of mappings; absent means empty."""
        found = []
        for at, item in enumerate(self._items(field, most)):
            name = f"{field}[{at}]"
            if not isinstance(item, yaml.MappingNode):
                self._refuse(_line(item), name, f"must be a mapping, not {_kind(item)}")
            found.append(Section(self.file, item, self._path(name)))
        return found

    def entries(
        self, field: str, most: int, read: Callable[["Section"], Entry], by: str = "id"
    ) -> dict[str, Entry]:
        """A list of mappings as `read` takes each of them, under its field `by`, which must be
        another one in each; absent means empty."""
        found: dict[str, Entry] = {}
        for inner in self.sections(field, most):
            entry, key = read(inner), inner.text(by, MAX_BYTES)
            if key in found:
                inner.fail(by, f"{key!r} is the {by} of another entry of {field}")
            found[key] = entry
        return found

    def section(self, field: str) -> "Section | None":
        """A mapping; None if it is absent."""
        node = self._take(field, required=False)
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            self.fail(field, f"must be a mapping, not {_kind(node)}")
        return Section(self.file, node, self._path(field))

    def scalars(self, field: str, most: int, limit: int) -> Mapping[str, Scalar]:
        """A mapping of ids to texts, numbers and flags; absent means empty."""
        inner = self._named(field, most)
        return {key: inner._known(key, node, limit) for key, node in inner._values()}

    def scalar_lists(self, field: str, most: int, limit: int) -> Mapping[str, tuple[Scalar, ...]]:
        """A mapping of ids to a text, number or flag, or a list of them; absent means empty."""
        inner = self._named(field, most)
        found: dict[str, tuple[Scalar, ...]] = {}
        for key, node in inner._values():
            items = inner._items(key, most) if isinstance(node, yaml.SequenceNode) else [node]
            if not items:
                inner.fail(key, "is empty")
            found[key] = tuple(inner._known(key, item, limit) for item in items)
        return found

    def fields(self) -> tuple[str, ...]:
        """The names of all fields, in the file's order."""
        return tuple(self._fields)

    def data(self, field: str) -> Data:
        """A field as JSON would have it; None if it is absent or empty."""
        node = self._take(field, required=False)
        return None if node is None else self._data(field, node)

    def finish(self) -> None:
        """Complain about the first field that nobody asked for."""
        for field in self._fields:
            if field not in self._taken:
                close = difflib.get_close_matches(field, self._taken, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                known = ", ".join(sorted(self._taken))
                self.fail(field, f"unknown field{hint} (known are {known})")

    def _named(self, field: str, most: int) -> "Section":
        """A mapping of at most so many ids."""
        inner = self.section(field)
        if inner is None:
            return Section(self.file, yaml.MappingNode("", [], self._mark, self._mark))
        if len(inner._fields) > most:
            self.fail(field, f"has {len(inner._fields)} entries, the limit is {most}")
        for key, (node, _) in inner._fields.items():
            inner.check_id(key[:80], key, _line(node))
        return inner

    def _values(self) -> list[tuple[str, yaml.Node]]:
        return [(key, value) for key, (_, value) in self._fields.items()]

    def _known(self, field: str, node: yaml.Node, limit: int) -> Scalar:
        value = _scalar(node)
        if isinstance(value, str):
            return self._text(field, node, limit)
        if value is None:
            problem = f"must be text, a number, true or false, not {_kind(node)}"
            self._refuse(_line(node), field, problem)
        return value

    def _data(self, field: str, node: yaml.Node) -> Data:
        if isinstance(node, yaml.MappingNode):
            inner = Section(self.file, node, self._path(field))
            return {key: inner._data(key, value) for key, value in inner._values()}
        if isinstance(node, yaml.SequenceNode):
            return [self._data(f"{field}[{at}]", item) for at, item in enumerate(node.value)]
        value = _scalar(node)
        if value is None and node.tag.rpartition(":")[2] != "null":
            problem = f"must be text, a number, true or false, not {_kind(node)}"
            self._refuse(_line(node), field, problem)
        return value

    def _take(self, field: str, *, required: bool) -> yaml.Node | None:
        self._taken.add(field)
        if field in self._fields:
            return self._fields[field][1]
        if required:
            self._refuse(self.line, field, "is missing")
        return None

    def _items(self, field: str, most: int) -> list[yaml.Node]:
        node = self._take(field, required=False)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.fail(field, f"must be a list, not {_kind(node)}")
        if len(node.value) > most:
            self.fail(field, f"has {len(node.value)} entries, the limit is {most}")
        return list(node.value)

    def _text(self, field: str, node: yaml.Node, limit: int) -> str:
        value = _scalar(node)
        if not isinstance(value, str):
            # YAML reads `name: No` as false and `year: 1955` as a number.
            quoted = "; put it in quotes" if isinstance(node, yaml.ScalarNode) else ""
            self._refuse(_line(node), field, f"must be text, not {_kind(node)}{quoted}")
        value = value.strip()
        if not value:
            self._refuse(_line(node), field, "is empty")
        if len(value) > limit:
            self._refuse(_line(node), field, f"has {len(value)} characters, the limit is {limit}")
        if _UNSEEN.search(value):
            self._refuse(_line(node), field, "contains a control character")
        return value

    def _path(self, field: str) -> str:
        return f"{self._name}.{field}" if self._name and field else self._name or field

    def _refuse(self, line: int, field: str, problem: str) -> NoReturn:
        raise PackError(self.file, line, self._path(field), problem)


def read_document(file: Path) -> Section:
    """The top of a YAML file.

    Raises:
        PackError: the file is missing, too large, not UTF-8, not YAML, not one mapping, or uses
            aliases or tags, which our files do not need and with which small files grow huge.
    """
    text = _read(file)
    try:
        node = _compose(file, text, _FASTEST)
    except yaml.YAMLError:
        node = _compose_in_python(file, text)
    if not isinstance(node, yaml.MappingNode):
        kind = _kind(node) if node is not None else "nothing"
        raise PackError(file, 1, "", f"must be a mapping of fields, not {kind}")
    return Section(file, node)


def append_to_list(file: Path, field: str, item: str) -> bytes:
    """The bytes of a YAML file with one more item, a plain word, in a list at its top. All else
    stays as its author wrote it, comments too.

    Raises:
        PackError: see `read_document`; or the field is no list.
    """
    section = read_document(file)
    text = _read(file)
    lines = text.splitlines(keepends=True)
    node = section._take(field, required=False)
    if node is None:
        end = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{end}{field}:\n  - {item}\n".encode()
    items = section._items(field, sys.maxsize)
    if not items or cast(yaml.SequenceNode, node).flow_style:
        mark = node.end_mark
        assert mark is not None  # text from a string always has marks
        line = lines[mark.line]
        at = mark.column - 1  # the closing bracket
        comma = ", " if items else ""
        lines[mark.line] = f"{line[:at]}{comma}{item}{line[at:]}"
        return "".join(lines).encode()
    last = items[-1].end_mark
    assert last is not None
    first = lines[_line(items[0]) - 1]
    dash = first[: first.index("-")]
    # A block ends in its last line, or in column 0 of the one behind it.
    at = last.line + (last.column > 0)
    if at and not lines[at - 1].endswith("\n"):
        lines[at - 1] += "\n"
    lines.insert(at, f"{dash}- {item}\n")
    return "".join(lines).encode()


def _compose(file: Path, text: str, loader: _Loader) -> yaml.Node | None:
    _check_events(file, text, loader)
    return yaml.compose(text, Loader=loader)


def _compose_in_python(file: Path, text: str) -> yaml.Node | None:
    try:
        return _compose(file, text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise PackError(file, mark.line + 1 if mark else 0, "", f"not YAML: {problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise PackError(file, line, "", f"not YAML: {error.reason}") from error


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise PackError(file, 0, "", f"cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise PackError(file, 0, "", f"is larger than {MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PackError(file, line, "", "is not UTF-8 text") from error


def _check_events(file: Path, text: str, loader: _Loader) -> None:
    """Refuse what the composer would follow without asking; events come one by one."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise PackError(file, _line(event), "", "anchors and aliases (& and *) are not allowed")
        if tag := getattr(event, "tag", None):
            raise PackError(file, _line(event), "", f"tags are not allowed ({str(tag)[:80]})")
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise PackError(file, _line(event), "", "holds more than one document")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise PackError(file, _line(event), "", f"is nested deeper than {MAX_DEPTH} levels")


def _line(node: yaml.Node | yaml.Event) -> int:
    mark = node.start_mark
    assert mark is not None  # text from a string always has marks
    return int(mark.line) + 1


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    kinds = {"bool": "the flag ", "int": "the number ", "float": "the number "}
    kinds |= {"timestamp": "the date "}
    kind = node.tag.rpartition(":")[2]
    return "nothing" if kind == "null" else kinds.get(kind, "") + str(node.value)[:40]


def _scalar(node: yaml.Node) -> Scalar | None:
    """The value of a text, flag or number node; None for anything else."""
    kind = node.tag.rpartition(":")[2]
    if not isinstance(node, yaml.ScalarNode):
        return None
    if kind == "str":
        return str(node.value)
    if kind == "bool":
        return node.value.lower() in ("yes", "true", "on")
    try:
        if kind == "int":
            number: int | float = int(node.value.replace("_", ""), 10)
        elif kind == "float":
            number = float(node.value.replace("_", ""))
        else:
            return None
    except ValueError:  # octal, sexagesimal and .inf: nobody means them
        return None
    # What JSON readers of every language take; excludes nan as well.
    return number if abs(number) < 2**53 else None
