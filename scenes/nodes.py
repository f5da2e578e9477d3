"""The nodes of YAML that people write, each with its line.

PyYAML's safe loader builds the node tree and nothing else: values are taken from nodes here,
because only nodes know their line. Where libyaml is there it reads ten times as fast; what it
complains about is read again by the loader in Python, whose complaints are the same everywhere.
"""

from pathlib import Path

import yaml

#: A thousand entries of lore fit; a larger file is a mistake or an attack.
MAX_BYTES = 1024 * 1024
#: Deepest nesting; ours are three levels deep, and the parser recurses.
MAX_DEPTH = 16
_Loader = type[yaml.SafeLoader] | type[yaml.CSafeLoader]
_FASTEST: _Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

Scalar = str | bool | int | float


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


def read_text(file: Path) -> str:
    """What a file holds.

    Raises:
        PackError: it is missing, larger than `MAX_BYTES` or not UTF-8.
    """
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


def compose(file: Path, text: str) -> yaml.Node | None:
    """The tree of nodes of a file's text; None if it says nothing.

    Raises:
        PackError: it is not YAML, or uses aliases or tags, which our files do not need and with
            which small files grow huge.
    """
    try:
        return _compose(file, text, _FASTEST)
    except yaml.YAMLError:
        return _compose_in_python(file, text)


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


def _check_events(file: Path, text: str, loader: _Loader) -> None:
    """Refuse what the composer would follow without asking; events come one by one."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise PackError(
                file, line_of(event), "", "anchors and aliases (& and *) are not allowed"
            )
        if tag := getattr(event, "tag", None):
            raise PackError(file, line_of(event), "", f"tags are not allowed ({str(tag)[:80]})")
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise PackError(file, line_of(event), "", "holds more than one document")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise PackError(file, line_of(event), "", f"is nested deeper than {MAX_DEPTH} levels")


def line_of(node: yaml.Node | yaml.Event) -> int:
    """The line a node begins in, from 1."""
    mark = node.start_mark
    assert mark is not None  # text from a string always has marks
    return int(mark.line) + 1


def kind_of(node: yaml.Node) -> str:
    """What a node is, in words for people."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    kinds = {"bool": "the flag ", "int": "the number ", "float": "the number "}
    kinds |= {"timestamp": "the date "}
    kind = node.tag.rpartition(":")[2]
    return "nothing" if kind == "null" else kinds.get(kind, "") + str(node.value)[:40]


def scalar_of(node: yaml.Node) -> Scalar | None:
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
