"""A character card, whichever file and version it comes from.

V1 is a flat object; V2 (`chara_card_v2`) and V3 (`chara_card_v3`) keep the same fields and more
under `data`. All of it is kept, so that a card can be written back with what we do not know.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from npc.cards import fields
from npc.cards.charx import read_charx, write_charx
from npc.cards.errors import CardError
from npc.cards.png import SIGNATURE, plain_picture, read_png, without_cards, write_png
from npc.cards.text import read_json

#: Bytes of a file. Pictures of cards have a few million.
MAX_FILE = 32 << 20
_SPECS = {"chara_card_v2": 2, "chara_card_v3": 3}


@dataclass(frozen=True, slots=True)
class Card:
    """What a file holds.

    Attributes:
        data: the fields of a card, as in `data` of V2 and V3; of a World Info file, its fields.
        version: 1, 2 or 3; 0 for a World Info file or a lorebook by itself.
        picture: a PNG without text, if there is one.
    """

    data: dict[str, Any]
    version: int
    picture: bytes | None = None


def read_card(file: Path) -> Card:
    """Read a card (JSON, PNG, CHARX) or a World Info file.

    Raises:
        CardError: the file cannot be read or used; nothing larger than `MAX_FILE` is read.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE + 1)
    except OSError as error:
        raise CardError("unreadable", f"cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_FILE:
        raise CardError("too_large", f"is larger than {MAX_FILE} bytes")
    return parse_card(data)


def parse_card(data: bytes) -> Card:
    """The card in the bytes of a file; their beginning says of which kind they are.

    Raises:
        CardError: they cannot be used.
    """
    if data.startswith(SIGNATURE):
        return _card(read_json(read_png(data)), without_cards(data))
    if data.startswith(b"PK\x03\x04"):
        return _card(read_json(read_charx(data)), None)
    return _card(read_json(data), None)


def write_card(data: Mapping[str, Any], version: int, suffix: str, picture: bytes | None) -> bytes:
    """The bytes of a card's file.

    Args:
        version: of JSON; a PNG has V2 and V3 in it, CHARX is V3.
        suffix: ".json", ".png" or ".charx".
        picture: for a PNG; without one it gets a plain one.

    Raises:
        CardError: there is no such kind of file.
    """
    if suffix == ".json":
        return _json(_wrapped(data, version))
    if suffix == ".charx":
        return write_charx(_json(_wrapped(data, 3)))
    if suffix == ".png":
        cards = {"chara": _json(_wrapped(data, 2)), "ccv3": _json(_wrapped(data, 3))}
        return write_png(picture or plain_picture(), cards)
    raise CardError("not_a_card", f"{suffix or 'no suffix'} is none of .json, .png, .charx")


def _card(top: dict[str, Any], picture: bytes | None) -> Card:
    spec = top.get("spec")
    if spec == "lorebook_v3":
        return Card(fields.mapping(top, "data"), 0)
    if isinstance(spec, str) and spec not in _SPECS:
        raise CardError("not_a_card", f"is of the unknown kind {spec[:40]!r}")
    if isinstance(spec, str):
        data, version = fields.mapping(top, "data"), _SPECS[spec]
    elif "entries" in top and "first_mes" not in top:
        return Card(top, 0)
    else:
        data, version = top, 1
    if not re.search(r"\w", fields.text(data, "name")):
        raise CardError("missing", "has no name: it is no character card, or a broken one")
    if not (fields.text(data, "description") or fields.text(data, "personality")):
        raise CardError("missing", "has neither description nor personality")
    return Card(data, version, picture)


def _wrapped(data: Mapping[str, Any], version: int) -> Mapping[str, Any]:
    if version < 2:
        return data
    return {"spec": f"chara_card_v{version}", "spec_version": f"{version}.0", "data": data}


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)
