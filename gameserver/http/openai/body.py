"""From the bytes of a request to its fields, within limits."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from gameserver.http.openai.errors import ApiError, bad_field

#: A body that is too large is read on for so many times its limit: a client that is cut off in the
#: middle of its sending sees a broken connection instead of our answer.
_PATIENCE = 8
_WHERE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_FIELD = re.compile(r"field `(?P<name>[^`]*)`")

Fields = TypeVar("Fields")


async def read_body(request: Request, limit: int, patience_s: float) -> bytes:
    """The body of a JSON request.

    Args:
        limit: most bytes of it.
        patience_s: seconds it may take to arrive.

    Raises:
        ApiError: 415, 413 or 408.
        starlette.requests.ClientDisconnect: the client is gone.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Also what keeps web pages elsewhere out: without our leave they cannot send this type.
    if kind != "application/json" or request.headers.get("content-encoding", "identity") != (
        "identity"
    ):
        raise ApiError(
            415,
            "send the body as 'Content-Type: application/json', not compressed",
            code="bad_type",
        )
    body = bytearray()
    size = 0
    try:
        async with asyncio.timeout(patience_s):
            async for piece in request.stream():
                size += len(piece)
                if size <= limit:
                    body += piece
                elif size > limit * _PATIENCE:
                    break
    except TimeoutError:
        raise ApiError(408, f"no whole body within {patience_s:g} s", code="timeout") from None
    if size > limit:
        raise ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    return bytes(body)


def decode_body(body: bytes, decoder: msgspec.json.Decoder[Fields], depth: int) -> Fields:
    """The fields of a request.

    Args:
        depth: most levels of nesting in what clients may shape freely (schemas).

    Raises:
        ApiError: 400, with the field as its `param`.
    """
    try:
        fields = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is no JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None
    for name in fields.__struct_fields__:  # type: ignore[attr-defined]
        if _deeper(getattr(fields, name), depth):
            raise bad_field(name, f"{name} is nested more than {depth} levels deep")
    return fields


def _named(message: str) -> ApiError:
    """The error of the decoder, and the field it is about in OpenAI's notation."""
    where = _WHERE.search(message)
    path = where["path"] if where else ""
    text = _WHERE.sub("", message)
    if field := _FIELD.search(text):
        path = f"{path}.{field['name']}".lstrip(".")
        if "unknown" in text:
            return ApiError(
                400, f"{path} is not supported here", param=path, code="unknown_parameter"
            )
        return ApiError(400, f"{path} is missing", param=path, code="missing_required_parameter")
    return bad_field(path, f"{path or 'the body'}: {text[:1].lower()}{text[1:]}")


def _deeper(value: object, depth: int) -> bool:
    """Whether containers stand in each other more than `depth` levels deep. Does not recurse."""
    level = [value]
    for _ in range(depth + 1):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterator[object]:
    if isinstance(value, dict):
        yield from (v for v in value.values() if isinstance(v, (dict, list)))
    elif isinstance(value, list):
        yield from (v for v in value if not isinstance(v, (str, int, float, bool, type(None))))
    elif isinstance(value, msgspec.Struct):
        yield from (getattr(value, name) for name in value.__struct_fields__)
