"""What clients can ask for: one type per message, named and shaped as on the wire."""

from typing import Annotated, Any, Literal

import msgspec

from gameserver.inbound import Message, bad_field
from gameserver.messages import Role
from gameserver.protocol import Code, Id, Refusal

Index = Annotated[int, msgspec.Meta(ge=0)]


class Auth(msgspec.Struct, frozen=True):
    """A credential."""

    kind: str | None = "none"
    token: str | None = None


class Proto(msgspec.Struct, frozen=True):
    """The protocol version a client speaks."""

    major: int


class Cursor(msgspec.Struct, frozen=True):
    """The last event of a stream that a client has handled, and the last `state.delta`."""

    st: str
    s: Index
    rev: Index | None = None
    ep: Index | None = None


class TurnCursor(msgspec.Struct, frozen=True):
    """The first chunk of a turn that a client has not got."""

    turn: str
    next_i: Index


class Resume(msgspec.Struct, frozen=True):
    """A request to go on with an earlier session."""

    session: str
    token: str
    cursors: list[Cursor] | None = None
    turns: list[TurnCursor] | None = None


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


class AuthRefresh(msgspec.Struct, frozen=True):
    """`auth.refresh`: a new credential of the same player, before or soon after the old expires."""

    auth: Auth


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


class StateWrite(msgspec.Struct, frozen=True):
    """A new value of a key of an entity; null: none."""

    e: Id
    k: Id
    v: Any


class StateSet(msgspec.Struct, frozen=True):
    """`state.set`."""

    items: list[StateWrite]


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
    | AuthRefresh
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
    | StateSet
    | HistoryGet
    | FlowSet
    | Bye
)

_TYPES: dict[str, type[Command]] = {
    "identify": Identify,
    "auth.refresh": AuthRefresh,
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
    "state.set": StateSet,
    "history.get": HistoryGet,
    "flow.set": FlowSet,
    "bye": Bye,
}

#: Types that change nothing, that answer themselves, or that may as well come twice; all others
#: need an `id`.
_NEED_NO_ID = frozenset(
    {"identify", "auth.refresh", "heartbeat", "history.get", "state.set", "bye"}
)


def read(message: Message) -> Command:
    """The typed payload of a message.

    Raises:
        Refusal: `unknown_type` or `bad_field`; the text names the field.
    """
    kind = _TYPES.get(message.t)
    if kind is None:
        raise Refusal(Code.UNKNOWN_TYPE, f"there is no type {message.t[:64]!r}", re=message.id)
    if message.id is None and message.t not in _NEED_NO_ID:
        raise bad_field(f"{message.t} changes something and needs an id")
    try:
        return msgspec.convert(message.d, kind)
    except msgspec.ValidationError as error:
        raise bad_field(f"d: {error}", message.id) from None
