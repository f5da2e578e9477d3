"""Actions: what an NPC can do beside talking, as an author writes it.

An action has a name and arguments, each described by a JSON schema. The usual ones are known here;
a scene file may add others. `npc.actions` decides when one is open and reads it from a reply; what
it does in the world is the game's business.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scenes.conditions import Condition, read_conditions
from scenes.document import Data, Section

#: Actions of one file.
MAX_ACTIONS = 32
MAX_ARGUMENTS = 8
MAX_DOES = 200
#: Characters of a text argument that names no bound of its own: a model of few words fills it.
MAX_TEXT = 80
_MAX_SECONDS = 86_400
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
#: Keywords that bound a text.
_BOUNDS = frozenset(["enum", "const", "maxLength", "pattern", "format", "anyOf", "oneOf", "$ref"])


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an action.

    Attributes:
        name: its key.
        schema: JSON text of its schema; "" if `source` says what it may be.
        source: "players": the id of somebody who hears the answer; "context KEY": one of what the
            game last told under that key; "" for none of these.
        optional: whether it may be left out.
    """

    name: str
    schema: str = ""
    source: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """Something an NPC can do.

    Attributes:
        name: for model and game.
        does: for the model: what the NPC does, after its name ("hands something over").
        args: of the action, in the order in which they are written.
        when: all of these must hold.
        cooldown_s: seconds after which it is open again to the same player.
        timeout_s: seconds that the game has to say what became of it.
    """

    name: str
    does: str
    args: tuple[Argument, ...] = ()
    when: tuple[Condition, ...] = ()
    cooldown_s: int = 0
    timeout_s: int = 10


_SHORT_TEXT = json.dumps({"type": "string", "minLength": 1, "maxLength": 40})
_GESTURES = ("wave", "nod", "bow", "laugh", "cry", "point", "shrug", "shake_head")
#: Actions that need no description. What they are about should be narrowed by whoever lists them.
USUAL: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action("give_item", "hands something over", (Argument("item", _SHORT_TEXT),)),
        Action("start_quest", "gives a task to do", (Argument("quest", _SHORT_TEXT),)),
        Action("follow", "goes along"),
        Action(
            "emote",
            "makes a gesture",
            (Argument("gesture", json.dumps({"enum": list(_GESTURES)})),),
        ),
        Action("open_door", "opens a door", (Argument("door", _SHORT_TEXT),)),
        Action(
            "trade",
            "sells something",
            (
                Argument("item", _SHORT_TEXT),
                Argument("price", json.dumps({"type": "integer", "minimum": 0, "maximum": 9999})),
            ),
        ),
    )
}


def read_actions(section: Section, known: Mapping[str, Action] = USUAL) -> tuple[Action, ...]:
    """The `actions:` of a scene or NPC file.

    Args:
        known: by name; an action of such a name takes from it what it does not say itself.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    read = partial(_action, known=known)
    return tuple(section.entries("actions", MAX_ACTIONS, read, by="name").values())


def markup(name: str, args: Mapping[str, Any]) -> str:
    """An action as it stands in a reply."""
    told = json.dumps(args, ensure_ascii=False, separators=(",", ":"))
    return f"[{name} {told}]" if args else f"[{name}]"


def sketch(action: Action) -> str:
    """An action as a prompt describes it: how it is written, and what the NPC does."""
    args = ",".join(f'"{arg.name}":…' for arg in action.args)
    return f"[{action.name} {{{args}}}] {action.does}" if args else f"[{action.name}] {action.does}"


def _action(section: Section, known: Mapping[str, Action]) -> Action:
    name = section.text("name", 64)
    if not _NAME.fullmatch(name):
        section.fail("name", f"{name!r} must be a-z, 0-9 and _, at most 32, a letter first")
    usual = known.get(name)
    if usual is None and "does" not in section.fields():
        others = ", ".join(sorted(known))
        section.fail("does", f"is missing: {name!r} is none of those known here ({others})")
    base = usual or Action(name, "")
    action = replace(
        base,
        does=section.text("does", MAX_DOES, default=base.does),
        args=_merged(base.args, _arguments(section)),
        when=base.when + read_conditions(section),
        cooldown_s=section.number("cooldown_s", 0, _MAX_SECONDS, default=base.cooldown_s),
        timeout_s=section.number("timeout_s", 1, _MAX_SECONDS, default=base.timeout_s),
    )
    section.finish()
    return action


def _merged(usual: tuple[Argument, ...], own: tuple[Argument, ...]) -> tuple[Argument, ...]:
    return tuple({arg.name: arg for arg in (*usual, *own)}.values())


def _arguments(section: Section) -> tuple[Argument, ...]:
    optional = {name for _, name in section.texts("optional", MAX_ARGUMENTS, 64)}
    inner = section.section("args")
    names = inner.fields() if inner is not None else ()
    if len(names) > MAX_ARGUMENTS:
        section.fail("args", f"has {len(names)} entries, the limit is {MAX_ARGUMENTS}")
    found = []
    for name in names:
        assert inner is not None
        if not _NAME.fullmatch(name):
            inner.fail(name, f"{name[:80]!r} must be a-z, 0-9 and _, at most 32, a letter first")
        found.append(_argument(inner, name, name in optional))
    if unknown := optional - set(names):
        section.fail("optional", f"{min(unknown)!r} is not among args")
    return tuple(found)


def _argument(section: Section, name: str, optional: bool) -> Argument:
    value = section.data(name)
    if value == "players":
        return Argument(name, "", "players", optional)
    if isinstance(value, dict) and set(value) == {"context"}:
        key = str(value["context"])
        section.check_id(name, key)
        return Argument(name, "", f"context {key}", optional)
    schema = _schema(section, name, value)
    return Argument(name, json.dumps(schema), "", optional)


def _schema(section: Section, name: str, value: Data) -> dict[str, Any]:
    """What an author wrote: a schema, or the list of all values."""
    schema = {"enum": value} if isinstance(value, list) and value else value
    if not isinstance(schema, dict) or not schema:
        section.fail(name, "must be a JSON schema, a list of values, players, or context: KEY")
    if schema.get("type") == "string" and not _BOUNDS & set(schema):
        schema = {**schema, "maxLength": MAX_TEXT}
    return schema
