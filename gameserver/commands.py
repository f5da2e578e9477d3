"""Messages from clients: from bytes to typed commands, or a `Refusal` that says what is wrong.

Three steps, none of which does I/O: JSON and the limits on its shape, the envelope (`parse`), the
typed payload (`read`). Unknown fields are ignored, but obey the limits too.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from gameserver.messages import Role
from gameserver.protocol import Close, Code, Id, Refusal
from gameserver.settings import Limits

_BIGGEST_INTEGER = 2**53 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")

Uint32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Index = Annotated[int, msgspec.Meta(ge=0)]


class Auth(msgspec.Struct, frozen=True):
    """A credential."""

    kind: str | None = "none"
    token: str | None = None


class Proto(msgspec.Struct, frozen=True):
    """The protocol version a client speaks."""

    major: int


class Cursor(msgspec.Struct, frozen=True):
    """The last event of a stream that a client has handled."""

    st: str
    s: Index


class TurnCursor(msgspec.Struct, frozen=True):
    """The first chunk of a turn that a client has not got."""

    turn: str
    next_i: Index


class Resume(msgspec.Struct, frozen=True):
    """A request to go on with an earlier session."""

    session: str
    token: str
    cursors: list[Cursor] = []
    turns: list[TurnCursor] = []


class Identify(msgspec.Struct, frozen=True):
    """`identify`: who a client is and what it can and must have."""

    player: Id
    name: str | None = None
    auth: Auth | None = None
    client: Any = None
    caps: list[str] | None = None
    need: list[str] | None = None
    resume: Resume | None = None
    proto: Proto | None = None


class Heartbeat(msgspec.Struct, frozen=True):
    """`heartbeat`: alive, and what has been handled."""

    n: int | None = None
    cursors: list[Cursor] | None = None
    lag_ms: float | None = None


class SceneJoin(msgspec.Struct, frozen=True):
    """`scene.join`."""

    scene: Id
    instance: Id | None = None
    role: Role | None = None
    greet: bool | None = None
    interest: list[str] | None = None
    since_s: Index | None = None


class SceneLeave(msgspec.Struct, frozen=True):
    """`scene.leave`; the scene may stand in the envelope instead."""

    scene: Id | None = None
    instance: Id | None = None


class Say(msgspec.Struct, frozen=True):
    """`say`: a line of a player. No `npc`: the scene decides who answers. `to`: a whisper."""

    text: str
    npc: str | None = None
    lang: str | None = None
    to: list[Id] | None = None
    reply_to: str | None = None
    prefill: str | None = None


class Interrupt(msgspec.Struct, frozen=True):
    """`npc.interrupt`; `heard_i` is the last chunk that was heard, absent if none was."""

    turn: str | None = None
    npc: str | None = None
    all: bool | None = None
    mode: Literal["truncate", "cancel", "yield"] | None = None
    heard_i: Index | None = None


class TurnHeard(msgspec.Struct, frozen=True):
    """`turn.heard`: how far a finished turn has been played."""

    turn: str
    heard_i: Index | None = None


class Observe(msgspec.Struct, frozen=True):
    """`observe`: a line the game itself spoke."""

    text: str
    npc: str | None = None
    who: Id | None = None


class ActionResult(msgspec.Struct, frozen=True):
    """`action.result`: what became of an NPC's action."""

    turn: str
    action: str
    ok: bool
    data: Any = None


class RaiseEvent(msgspec.Struct, frozen=True):
    """`world.event` from a client."""

    name: Id
    data: Any = None
    scope: str | None = None


class ContextItem(msgspec.Struct, frozen=True):
    """One thing an NPC should know about the moment."""

    k: str
    v: Any


class ContextSet(msgspec.Struct, frozen=True):
    """`context.set`."""

    items: list[ContextItem]
    npc: str | None = None


class HistoryGet(msgspec.Struct, frozen=True):
    """`history.get`: of one NPC, or of a whole scene."""

    npc: str | None = None
    scene: str | None = None
    before: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


class FlowSet(msgspec.Struct, frozen=True):
    """`flow.set`: slower deltas, or none for a while."""

    delta_ms: Index | None = None
    pause: bool | None = None


class Bye(msgspec.Struct, frozen=True):
    """`bye`: the session ends."""

    keep: bool | None = None


Command = (
    Identify
    | Heartbeat
    | SceneJoin
    | SceneLeave
    | Say
    | Interrupt
    | TurnHeard
    | Observe
    | ActionResult
    | RaiseEvent
    | ContextSet
    | HistoryGet
    | FlowSet
    | Bye
)

_TYPES: dict[str, type[Command]] = {
    "identify": Identify,
    "heartbeat": Heartbeat,
    "scene.join": SceneJoin,
    "scene.leave": SceneLeave,
    "say": Say,
    "npc.interrupt": Interrupt,
    "turn.heard": TurnHeard,
    "observe": Observe,
    "action.result": ActionResult,
    "world.event": RaiseEvent,
    "context.set": ContextSet,
    "history.get": HistoryGet,
    "flow.set": FlowSet,
    "bye": Bye,
}

#: Types that change nothing, or that answer themselves; all others need an `id`.
_NEED_NO_ID = frozenset({"identify", "heartbeat", "history.get", "bye"})


class _Wrapper(msgspec.Struct, frozen=True):
    t: str
    id: Uint32 | None = None
    st: Id | None = None
    d: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """An envelope whose payload has not been read yet."""

    t: str
    id: int | None
    st: str | None
    d: dict[str, Any]

    def digest(self) -> bytes:
        """Equal for equal messages, whatever the order of their fields."""
        body = msgspec.json.encode([self.t, self.st, self.d], order="sorted")
        return hashlib.blake2b(body, digest_size=16).digest()

    def read(self) -> Command:
        """The typed payload.

        Raises:
            Refusal: `unknown_type` or `bad_field`; the text names the field.
        """
        kind = _TYPES.get(self.t)
        if kind is None:
            raise Refusal(Code.UNKNOWN_TYPE, f"there is no type {self.t[:64]!r}", re=self.id)
        if self.id is None and self.t not in _NEED_NO_ID:
            raise _bad_field(f"{self.t} changes something and needs an id")
        try:
            return msgspec.convert(self.d, kind)
        except msgspec.ValidationError as error:
            raise _bad_field(f"d: {error}", self.id) from None


def parse(frame: str | bytes, limits: Limits) -> Message:
    """Read one frame up to its envelope.

    Raises:
        Refusal: `bad_frame` (fatal), `bad_json`, `too_deep`, `too_large` or `bad_field`, with the
            message's id where that could be read.
    """
    if isinstance(frame, bytes):
        raise Refusal(Code.BAD_FRAME, "this subprotocol uses text frames", close=Close.WRONG_FRAME)
    try:
        message = _decode(frame)
    except RecursionError:
        raise _too_deep(limits, None) from None
    except Refusal:
        raise
    except ValueError as error:
        raise Refusal(Code.BAD_JSON, f"not JSON: {error}"[:200], unreadable=True) from None
    if not isinstance(message, dict):
        raise _bad_field("a message is an object")
    ident = message.get("id")
    re = ident if type(ident) is int and 0 <= ident < 2**32 else None
    _check_shape(message, limits, re)
    try:
        wrapper = msgspec.convert(message, _Wrapper)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error), re) from None
    return Message(wrapper.t, wrapper.id, wrapper.st, wrapper.d or {})


def _bad_field(problem: str, re: int | None = None) -> Refusal:
    return Refusal(Code.BAD_FIELD, problem[:300], unreadable=True, re=re)


def _too_deep(limits: Limits, re: int | None) -> Refusal:
    message = f"nested deeper than {limits.json_depth} levels"
    return Refusal(Code.TOO_DEEP, message, limit=limits.json_depth, unreadable=True, re=re)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        # Two parsers may disagree on which one counts: nobody gets to play them against each other.
        raise ValueError("a key appears twice in one object")
    return members


def _integer(digits: str) -> int:
    if len(digits) > 17 or abs(int(digits)) > _BIGGEST_INTEGER:
        raise _bad_field(f"the integer {digits[:20]} is beyond 2^53")
    return int(digits)


def _number(digits: str) -> float | int:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is out of range")
    # Engines that know only floats echo the sequence number 12 as 12.0.
    return int(number) if number.is_integer() and abs(number) <= _BIGGEST_INTEGER else number


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


# The standard scanner and not msgspec's, because only it shows duplicate keys.
_decode = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_constant,
).decode


def _check_shape(value: object, limits: Limits, re: int | None, depth: int = 1) -> None:
    """Enforce depth, sizes and well-formed characters everywhere, in ignored fields too."""
    if isinstance(value, str):
        _check_string(value, limits, re)
    elif isinstance(value, (dict, list)):
        if depth > limits.json_depth:
            raise _too_deep(limits, re)
        if len(value) > limits.json_items:
            message = f"{len(value)} items in one array or object"
            raise Refusal(
                Code.BAD_FIELD,
                message,
                limit=limits.json_items,
                actual=len(value),
                unreadable=True,
                re=re,
            )
        if isinstance(value, dict):
            for key in value:
                _check_string(key, limits, re)
        for item in value.values() if isinstance(value, dict) else value:
            _check_shape(item, limits, re, depth + 1)


def _check_string(text: str, limits: Limits, re: int | None) -> None:
    if _SURROGATE.search(text):
        raise _bad_field("half a surrogate pair in a string", re)
    size = len(text) if text.isascii() else len(text.encode())
    if size > limits.json_string_bytes:
        raise Refusal(
            Code.TOO_LARGE,
            f"a string of {size} bytes",
            limit=limits.json_string_bytes,
            actual=size,
            re=re,
        )
