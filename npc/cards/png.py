"""Cards in the text chunks of PNG pictures (PNG specification, third edition, sections 5 and 11.3).

The picture itself is never decoded.
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Iterator

from npc.cards.errors import CardError
from npc.cards.text import MAX_JSON

SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Base64 makes four bytes of three.
_MAX_BASE64 = MAX_JSON * 4 // 3 + 4
_TEXT = (b"tEXt", b"zTXt", b"iTXt")
#: The newer format first: where a picture has both, the second is there for older programs.
KEYWORDS = ("ccv3", "chara")


def read_png(data: bytes) -> bytes:
    """The JSON of the card in a picture.

    Raises:
        CardError: the picture is damaged, its card too large, or there is none.
    """
    found: dict[str, bytes] = {}
    for kind, body in _chunks(data):
        if kind in _TEXT:
            keyword, _, rest = body.partition(b"\x00")
            name = keyword.decode("latin-1").lower()
            if name in KEYWORDS:
                found.setdefault(name, _text(kind, rest))
    for wanted in KEYWORDS:
        if wanted in found:
            return _base64(found[wanted])
    raise CardError("not_a_card", "is a picture without a card in it (no chara or ccv3 text)")


def without_cards(data: bytes) -> bytes:
    """A picture without what anybody wrote into it."""
    kept = (_chunk(kind, body) for kind, body in _chunks(data) if kind not in _TEXT)
    return SIGNATURE + b"".join(kept)


def write_png(picture: bytes, cards: dict[str, bytes]) -> bytes:
    """A picture with cards in it.

    Args:
        picture: a PNG.
        cards: JSON by keyword.
    """
    texts = b"".join(
        _chunk(b"tEXt", keyword.encode() + b"\x00" + base64.b64encode(card))
        for keyword, card in cards.items()
    )
    bare = without_cards(picture)
    end = len(bare) - len(_chunk(b"IEND", b""))
    return bare[:end] + texts + bare[end:]


def plain_picture(width: int = 200, height: int = 300) -> bytes:
    """A grey picture, for a card whose character has none."""
    rows = zlib.compress((b"\x00" + b"\x80" * width) * height)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not data.startswith(SIGNATURE):
        raise CardError("damaged", "is no PNG picture")
    at = len(SIGNATURE)
    while True:
        head = data[at : at + 8]
        if len(head) < 8:
            raise CardError("damaged", "is a PNG picture that breaks off before its end")
        length, kind = struct.unpack(">I4s", head)
        body, check = data[at + 8 : at + 8 + length], data[at + 8 + length : at + 12 + length]
        if len(body) < length or len(check) < 4:
            raise CardError("damaged", "is a PNG picture that breaks off inside a chunk")
        if zlib.crc32(kind + body) != int.from_bytes(check, "big"):
            raise CardError("damaged", f"has a chunk {kind!r} whose checksum is wrong")
        yield kind, body
        if kind == b"IEND":
            return
        at += 12 + length


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", len(body), kind) + body + struct.pack(">I", zlib.crc32(kind + body))


def _text(kind: bytes, rest: bytes) -> bytes:
    """What a text chunk says, behind its keyword."""
    if kind == b"tEXt":
        return _bounded(rest)
    if kind == b"zTXt":
        return _inflated(rest[:1] == b"\x00", rest[1:])
    packed, method, rest = rest[:1] == b"\x01", rest[1:2] == b"\x00", rest[2:]
    _language, _, rest = rest.partition(b"\x00")
    _translated, _, text = rest.partition(b"\x00")
    return _inflated(method, text) if packed else _bounded(text)


def _bounded(text: bytes) -> bytes:
    if len(text) > _MAX_BASE64:
        raise CardError("too_large", f"holds a card of more than {MAX_JSON} bytes")
    return text


def _inflated(known: bool, packed: bytes) -> bytes:
    if not known:
        raise CardError("damaged", "has compressed text of an unknown method")
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(packed, _MAX_BASE64 + 1)
    except zlib.error as error:
        raise CardError("damaged", f"has compressed text that is damaged: {error}") from None
    _bounded(text)
    if not inflater.eof:
        raise CardError("damaged", "has compressed text that breaks off")
    return text


def _base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error as error:
        raise CardError("damaged", f"has a card that is not base64: {error}") from None
