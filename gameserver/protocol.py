"""Wire protocol v1: its vocabulary, and messages to clients as bytes. Nothing here does I/O."""

import secrets
import time
from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Annotated, Any

import msgspec

MAJOR, MINOR = 1, 0
PATH = "/v1/ws"
#: Framings: text frames of JSON, binary frames of msgpack; the same messages in both.
SUBPROTOCOL = "npc.v1.json"
MSGPACK = "npc.v1.msgpack"
#: Stream of what only one session may see.
PRIVATE = "me"
#: Optional parts of the protocol that this server has; clients name them in `caps` and `need`.
FEATURES = (
    "actions",
    "asides",
    "context",
    "greet",
    "history",
    "instances",
    "interest",
    "interrupt",
    "msgpack",
    "observe",
    "pause",
    "prefill",
    "quests",
    "resume",
    "whisper",
    "world.state",
    "world_event",
)

#: Scene, NPC, player and message ids. `\Z`, because `$` would let a line break through.
ID_PATTERN = r"\A[A-Za-z0-9_.-]{1,64}\Z"
Id = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]


class Close(IntEnum):
    """WebSocket close codes: the standard ones, and 4000 + the closest HTTP status."""

    NORMAL = 1000
    RESTART = 1012
    WRONG_FRAME = 1003
    TOO_LARGE = 1009
    BAD_MESSAGES = 4400
    AUTH_FAILED = 4401
    FORBIDDEN = 4403
    NOT_IDENTIFIED = 4408
    REPLACED = 4409
    VERSION = 4426
    RATE_LIMITED = 4429
    HEARTBEAT_LOST = 4440
    STALLED = 4441
    MOVED = 4450
    OVERLOADED = 4503


class Code(StrEnum):
    """Error codes this server sends."""

    BAD_JSON = "bad_json"
    TOO_DEEP = "too_deep"
    BAD_FIELD = "bad_field"
    UNKNOWN_TYPE = "unknown_type"
    NOT_IDENTIFIED = "not_identified"
    ALREADY_IDENTIFIED = "already_identified"
    AUTH_FAILED = "auth_failed"
    FORBIDDEN = "forbidden"
    VERSION = "version"
    RATE_LIMITED = "rate_limited"
    TOO_LARGE = "too_large"
    CONTEXT_EXCEEDED = "context_exceeded"
    BAD_FRAME = "bad_frame"
    NO_SCENE = "no_scene"
    NOT_IN_SCENE = "not_in_scene"
    NO_NPC = "no_npc"
    BUSY = "busy"
    NO_TURN = "no_turn"
    TOO_FAR = "too_far"
    OVER_BUDGET = "over_budget"
    HALTED = "halted"
    DUPLICATE_ID = "duplicate_id"
    HEARTBEAT_LOST = "heartbeat_lost"
    MOVED = "moved"
    REPLACED = "replaced"
    INTERNAL = "internal"
    DRAINING = "draining"


class Refusal(Exception):
    """A message or command that is not carried out, and what the client is told about it.

    Attributes:
        code, msg, retry_ms, limit, actual: as in the protocol's `error`.
        close: close code if the error is fatal.
        unreadable: whether the message itself was at fault; the third such one is fatal.
        re: the message's id, where it could be read.
    """

    def __init__(
        self,
        code: Code,
        msg: str,
        *,
        retry_ms: int | None = None,
        limit: int | None = None,
        actual: int | None = None,
        close: Close | None = None,
        unreadable: bool = False,
        re: int | None = None,
    ) -> None:
        super().__init__(msg)
        self.code = code
        self.msg = msg
        self.retry_ms = retry_ms
        self.limit = limit
        self.actual = actual
        self.close = close
        self.unreadable = unreadable
        self.re = re

    def encode(self, re: int | None = None, st: str | None = None) -> "Encoded":
        """The `error` message, answering command `re`."""
        body = Error(
            code=self.code,
            msg=self.msg,
            fatal=self.close is not None,
            retry_ms=self.retry_ms,
            limit=self.limit,
            actual=self.actual,
        )
        return encode("error", body, re=re if re is not None else self.re, st=st)


class Error(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Payload of `error`."""

    code: str
    msg: str
    fatal: bool
    retry_ms: int | None = None
    limit: int | None = None
    actual: int | None = None


#: A struct, or for payloads whose keys the author of a scene chooses, a mapping.
Payload = msgspec.Struct | Mapping[str, object]


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What every message to a client is wrapped in; fields are named as on the wire."""

    t: str
    st: str | None = None
    s: int | None = None
    ep: int | None = None
    re: int | None = None
    ts: int
    d: Payload


_encoder = msgspec.json.Encoder()
_packer = msgspec.msgpack.Encoder()


class Encoded:
    """A message to clients as bytes, made once for everybody who gets it.

    Attributes:
        json: UTF-8, no line breaks. Sizes and limits are those of this form.
    """

    __slots__ = ("_envelope", "_msgpack", "json")

    def __init__(self, envelope: Envelope) -> None:
        self.json = _encoder.encode(envelope)
        self._envelope = envelope
        self._msgpack: bytes | None = None

    @classmethod
    def of(cls, message: Mapping[str, Any], epoch: int | None = None) -> "Encoded":
        """A decoded message anew, in another epoch unless it had none."""
        changed = {"ep": epoch} if epoch is not None and "ep" in message else {}
        return cls(Envelope(**{**message, **changed}))

    @property
    def st(self) -> str | None:
        """The stream it is about."""
        return self._envelope.st

    def in_epoch(self, epoch: int) -> "Encoded":
        """The same in a later epoch: a client drops what comes with an earlier one."""
        if self._envelope.ep in (None, epoch):
            return self
        return Encoded(msgspec.structs.replace(self._envelope, ep=epoch))

    def __len__(self) -> int:
        return len(self.json)

    @property
    def msgpack(self) -> bytes:
        """The same message for those who asked for msgpack."""
        if self._msgpack is None:
            self._msgpack = _packer.encode(self._envelope)
        return self._msgpack


def encode(
    t: str,
    d: Payload,
    *,
    st: str | None = None,
    s: int | None = None,
    ep: int | None = None,
    re: int | None = None,
) -> Encoded:
    """One message to a client, stamped with the wall clock."""
    return Encoded(Envelope(t=t, st=st, s=s, ep=ep, re=re, ts=now_ms(), d=d))


def encoded_size(text: str) -> int:
    """Bytes that `text` takes inside a message."""
    return len(_encoder.encode(text)) - 2


def new_id(kind: str) -> str:
    """A new id for a message ("m"), a turn ("t") or a session ("s"), unique among all servers."""
    return f"{kind}-{secrets.token_hex(8)}"


def now_ms() -> int:
    """Wall clock in milliseconds, as in `ts`."""
    return time.time_ns() // 1_000_000
