"""JSON and text of strangers, bounded before anything is built from them."""

from typing import Any

import orjson

from npc.cards.errors import CardError

#: Bytes of JSON. The largest lorebooks that people share have about two million.
MAX_JSON = 4 << 20
#: Lists and mappings in it: each takes sixty bytes and more of memory, however short its text is.
MAX_NODES = 100_000
#: Deepest nesting; cards have about six levels.
MAX_DEPTH = 64
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_json(raw: bytes) -> dict[str, Any]:
    """One JSON object.

    Raises:
        CardError: it is too large or too deep, not UTF-8, not JSON, or no object.
    """
    if len(raw) > MAX_JSON:
        raise CardError("too_large", f"has {len(raw)} bytes of JSON, the limit is {MAX_JSON}")
    if raw[:2] in _UTF16 or b"\x00" in raw[:4]:
        raise CardError("encoding", "is UTF-16 or UTF-32 text; save it as UTF-8")
    if raw.count(b"[") + raw.count(b"{") > MAX_NODES:
        raise CardError("too_large", f"has more than {MAX_NODES} lists and mappings")
    try:
        value = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        if _is_utf8(raw):
            raise CardError("damaged", f"is not JSON: {error}") from None
        raise CardError("encoding", "is not UTF-8 text") from None
    if not isinstance(value, dict):
        raise CardError("not_a_card", "is JSON, but no object with the fields of a card")
    _check_depth(value)
    return value


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _check_depth(value: object) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise CardError("too_deep", f"is nested deeper than {MAX_DEPTH} levels")
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        level = inner
