"""YAML that people write, read field by field; every complaint names file, line and field."""

import difflib
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import yaml

from scenes.nodes import (
    MAX_BYTES,
    PackError,
    Scalar,
    compose,
    kind_of,
    line_of,
    read_text,
    scalar_of,
)

__all__ = [
    "ID",
    "MAX_BYTES",
    "Data",
    "PackError",
    "Scalar",
    "Section",
    "append_to_list",
    "read_document",
]

#: Ids end up in messages, topics and file names.
ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

#: What JSON can say.
Data = dict[str, Any] | list[Any] | Scalar | None
Word = TypeVar("Word", bound=str)
Entry = TypeVar("Entry")


class Section:
    """One YAML mapping that is being read.

    Each reader takes one field; `finish` complains about fields that nobody took. A reader with a
    default returns it if the field is absent, one without complains.
    """

    def __init__(self, file: Path, node: yaml.MappingNode, name: str = "") -> None:
        self.file = file
        self.line = line_of(node)
        self._mark = node.start_mark
        self._name = name
        self._fields: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        self._taken: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(line_of(key), "", "field names must be plain words")
            if key.value in self._fields:
                first = line_of(self._fields[key.value][0])
                self._refuse(line_of(key), key.value, f"appears twice, first in line {first}")
            self._fields[key.value] = (key, value)

    def line_of(self, field: str) -> int:
        """The line a field is in; the section's own if it is absent."""
        return line_of(self._fields[field][0]) if field in self._fields else self.line

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
        value = scalar_of(node)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.fail(field, f"must be a whole number from {least} to {most}, not {kind_of(node)}")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """true or false."""
        node = self._take(field, required=False)
        if node is None:
            return default
        value = scalar_of(node)
        if not isinstance(value, bool):
            self.fail(field, f"must be true or false, not {kind_of(node)}")
        return value

    def texts(self, field: str, most: int, limit: int) -> list[tuple[int, str]]:
        """A list of texts, each with its line; absent means empty."""
        return [
            (line_of(item), self._text(f"{field}[{at}]", item, limit))
            for at, item in enumerate(self._items(field, most))
        ]

    def sections(self, field: str, most: int) -> list["Section"]:
        """A list of mappings; absent means empty."""
        found = []
        for at, item in enumerate(self._items(field, most)):
            name = f"{field}[{at}]"
            if not isinstance(item, yaml.MappingNode):
                self._refuse(line_of(item), name, f"must be a mapping, not {kind_of(item)}")
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
            self.fail(field, f"must be a mapping, not {kind_of(node)}")
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
            inner.check_id(key[:80], key, line_of(node))
        return inner

    def _values(self) -> list[tuple[str, yaml.Node]]:
        return [(key, value) for key, (_, value) in self._fields.items()]

    def _known(self, field: str, node: yaml.Node, limit: int) -> Scalar:
        value = scalar_of(node)
        if isinstance(value, str):
            return self._text(field, node, limit)
        if value is None:
            problem = f"must be text, a number, true or false, not {kind_of(node)}"
            self._refuse(line_of(node), field, problem)
        return value

    def _data(self, field: str, node: yaml.Node) -> Data:
        if isinstance(node, yaml.MappingNode):
            inner = Section(self.file, node, self._path(field))
            return {key: inner._data(key, value) for key, value in inner._values()}
        if isinstance(node, yaml.SequenceNode):
            return [self._data(f"{field}[{at}]", item) for at, item in enumerate(node.value)]
        value = scalar_of(node)
        if value is None and node.tag.rpartition(":")[2] != "null":
            problem = f"must be text, a number, true or false, not {kind_of(node)}"
            self._refuse(line_of(node), field, problem)
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
            self.fail(field, f"must be a list, not {kind_of(node)}")
        if len(node.value) > most:
            self.fail(field, f"has {len(node.value)} entries, the limit is {most}")
        return list(node.value)

    def _text(self, field: str, node: yaml.Node, limit: int) -> str:
        value = scalar_of(node)
        if not isinstance(value, str):
            # YAML reads `name: No` as false and `year: 1955` as a number.
            quoted = "; put it in quotes" if isinstance(node, yaml.ScalarNode) else ""
            self._refuse(line_of(node), field, f"must be text, not {kind_of(node)}{quoted}")
        value = value.strip()
        if not value:
            self._refuse(line_of(node), field, "is empty")
        if len(value) > limit:
            self._refuse(line_of(node), field, f"has {len(value)} characters, the limit is {limit}")
        if _UNSEEN.search(value):
            self._refuse(line_of(node), field, "contains a control character")
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
    node = compose(file, read_text(file))
    if not isinstance(node, yaml.MappingNode):
        kind = kind_of(node) if node is not None else "nothing"
        raise PackError(file, 1, "", f"must be a mapping of fields, not {kind}")
    return Section(file, node)


def append_to_list(file: Path, field: str, item: str) -> bytes:
    """The bytes of a YAML file with one more item, a plain word, in a list at its top. All else
    stays as its author wrote it, comments too.

    Raises:
        PackError: see `read_document`; or the field is no list.
    """
    section = read_document(file)
    text = read_text(file)
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
    first = lines[line_of(items[0]) - 1]
    dash = first[: first.index("-")]
    # A block ends in its last line, or in column 0 of the one behind it.
    at = last.line + (last.column > 0)
    if at and not lines[at - 1].endswith("\n"):
        lines[at - 1] += "\n"
    lines.insert(at, f"{dash}- {item}\n")
    return "".join(lines).encode()
