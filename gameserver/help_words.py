"""The words in which `--help` says what an option takes: a person's, not a programmer's."""

from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_NAMES = {"int": "NUMBER", "float": "NUMBER", "str": "TEXT", "path": "PATH", "file": "FILE"}


class Commands(TyperGroup):
    """A group of commands whose help says what each option takes in plain words."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in (self, *self.commands.values()):
            if isinstance(command, TyperCommand | TyperGroup):
                for parameter in _parameters(command):
                    _reword(parameter)


def _parameters(command: TyperCommand | TyperGroup) -> Iterator[TyperOption | TyperArgument]:
    """All that a command takes, `--help` included."""
    context = command.make_context(command.name or "", [], resilient_parsing=True)
    for parameter in command.get_params(context):
        if isinstance(parameter, TyperOption | TyperArgument):
            yield parameter


def _reword(parameter: TyperOption | TyperArgument) -> None:
    """Let one parameter say what it takes in our words, unless it has words of its own."""
    own = parameter.metavar if isinstance(parameter, TyperOption) else None
    words = _words(parameter) if own is None else own
    vars(parameter).update(
        display_type_rich=lambda ctx: words,
        _get_number_range_help_str=lambda: None,  # the words say that
    )


def _words(parameter: TyperOption | TyperArgument) -> str:
    described = parameter.type_descriptor
    if isinstance(parameter, TyperOption) and parameter.is_flag:
        return ""
    if described.is_choice:
        return "|".join(map(str, described.choices or ()))
    name = "path" if described.is_path else parameter.bare_type()
    return _NAMES.get(name, "TEXT") + _range(parameter.min, parameter.max)


def _range(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}"
    if least is not None:
        return f" of {least:g} or more"
    return "" if most is None else f" up to {most:g}"
