"""Messages from clients: from one frame to an envelope, or a `Refusal` that says what is wrong.

JSON or msgpack first, then limits on its shape, then the envelope. Unknown fields obey the limits
too.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from gameserver.protocol import Close, Code, Id, Refusal
from gameserver.settings import Limits

_BIGGEST_INTEGER = 2**53 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Envelope(msgspec.Struct, frozen=True):
    t: str
    id: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None = None
    st: Id | None = None
    d: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """An envelope whose payload has not been read yet."""

    t: str
    id: int | None
    st: str | None
    d: dict[str, Any]

    def body(self) -> bytes:
        """Equal for equal messages, whatever the order of their fields."""
        return msgspec.json.encode([self.t, self.st, self.d], order="sorted")


def parse(frame: str | bytes, limits: Limits, *, binary: bool = False) -> Message:
    """Read one frame up to its envelope.

    Args:
        binary: whether frames are binary and hold msgpack.

    Raises:
        Refusal: `bad_frame` (fatal), `bad_json`, `too_deep`, `too_large` or `bad_field`, with the
            message's id where that could be read.
    """
    if isinstance(frame, bytes) is not binary:
        kind = "binary" if binary else "text"
        problem = f"this subprotocol uses {kind} frames"
        raise Refusal(Code.BAD_FRAME, problem, close=Close.WRONG_FRAME)
    try:
        message = _unpack(frame) if isinstance(frame, bytes) else _decode(frame)
    except RecursionError:
        raise _too_deep(limits, None) from None
    except Refusal:
        raise
    except (ValueError, msgspec.DecodeError) as error:
        form = "msgpack" if binary else "JSON"
        raise Refusal(Code.BAD_JSON, f"not {form}: {error}"[:200], unreadable=True) from None
    if not isinstance(message, dict):
        raise bad_field("a message is an object")
    ident = message.get("id")
    re = ident if type(ident) is int and 0 <= ident < 2**32 else None
    _check_shape(message, limits, re)
    try:
        envelope = msgspec.convert(message, _Envelope)
    except msgspec.ValidationError as error:
        raise bad_field(str(error), re) from None
    return Message(envelope.t, envelope.id, envelope.st, envelope.d or {})


def parse_json(text: bytes, limits: Limits) -> Any:
    """Any JSON value from outside, under the limits of messages.

    Raises:
        Refusal: `bad_json`, `too_deep`, `too_large` or `bad_field`.
    """
    try:
        value = _decode(text.decode())
    except RecursionError:
        raise _too_deep(limits, None) from None
    except ValueError as error:
        raise Refusal(Code.BAD_JSON, f"not JSON: {error}"[:200], unreadable=True) from None
    _check_shape(value, limits, None)
    return value


def bad_field(problem: str, re: int | None = None) -> Refusal:
    """The refusal of message `re`, which has a wrong or missing field."""
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
        raise bad_field(f"the integer {digits[:20]} is beyond 2^53")
    return int(digits)


def _number(digits: str) -> float | int:
    return _whole(float(digits))


def _whole(number: float) -> float | int:
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
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


def _unpack(frame: bytes) -> Any:
    """msgpack, as far as JSON could say the same. Of a key that appears twice the last one counts:
    the decoder does not show it, and nobody else reads the frame."""
    return _as_json(msgspec.msgpack.decode(frame))


def _as_json(value: Any) -> Any:
    match value:
        case None | bool() | str():
            return value
        case int():
            if abs(value) > _BIGGEST_INTEGER:
                raise bad_field(f"the integer {value} is beyond 2^53")
            return value
        case float():
            return _whole(value)
        case list():
            return [_as_json(item) for item in value]
        case dict():
            if not all(isinstance(key, str) for key in value):
                raise ValueError("keys are strings")
            return {key: _as_json(item) for key, item in value.items()}
    raise ValueError(f"{type(value).__name__} has no place in a message")


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
        raise bad_field("half a surrogate pair in a string", re)
    size = len(text) if text.isascii() else len(text.encode())
    if size > limits.json_string_bytes:
        raise Refusal(
            Code.TOO_LARGE,
            f"a string of {size} bytes",
            limit=limits.json_string_bytes,
            actual=size,
            re=re,
        )
