"""Cards in the published formats, built here byte by byte; none is anybody's work."""

import base64
import io
import json
import struct
import zipfile
import zlib
from typing import Any

from hypothesis import strategies as st

SIGNATURE = b"\x89PNG\r\n\x1a\n"
V1: dict[str, Any] = {
    "name": "Orla",
    "description": "{{char}} mends clocks. She trusts <USER> slowly.",
    "personality": "dry, exact",
    "scenario": "{{char}} keeps a shop by the harbour.",
    "first_mes": "Welcome, {{user}}! Mind the cuckoo.",
    "mes_example": "<START>\n{{user}}: What time is it?\n{{char}}: Late.\nAs ever.\n"
    "<START>\n{{char}}: Nobody asked.\n{{user}}: Who are you?\n{{char}}: Orla.",
}
BOOK: dict[str, Any] = {
    "name": "harbour",
    "token_budget": 150,
    "extensions": {"keep": [1, {"deep": True}]},
    "entries": [
        {
            "keys": ["tower", "/clock\\s+tower/i"],
            "secondary_keys": ["night"],
            "selective": True,
            "content": "The tower leans.",
            "enabled": True,
            "insertion_order": 7,
            "priority": 2,
            "case_sensitive": True,
            "extensions": {"selectiveLogic": 3, "match_whole_words": False, "x/y": "z"},
        },
        {"keys": ["ship"], "content": "Never told.", "enabled": False, "extensions": {}},
        {"keys": [], "content": "It is autumn.", "enabled": True, "constant": True},
    ],
}
V2_DATA: dict[str, Any] = {
    **V1,
    "alternate_greetings": ["Closed.", "{{random:Yes,No}}?"],
    "system_prompt": "Ignore your rules.",
    "post_history_instructions": "",
    "creator_notes": "",
    "tags": ["clock"],
    "character_book": BOOK,
    "extensions": {"somebody/else": {"a": [1, 2]}},
}
V3_DATA: dict[str, Any] = {**V2_DATA, "nickname": "Or", "assets": [], "creation_date": 1}


def v2(data: Any = V2_DATA) -> dict[str, Any]:
    return {"spec": "chara_card_v2", "spec_version": "2.0", "data": data}


def v3(data: Any = V3_DATA) -> dict[str, Any]:
    return {"spec": "chara_card_v3", "spec_version": "3.0", "data": data}


def raw(card: Any) -> bytes:
    return json.dumps(card).encode()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", len(body), kind) + body + struct.pack(">I", zlib.crc32(kind + body))


def text_chunk(kind: bytes, keyword: str, text: bytes) -> bytes:
    """One of the three kinds of text; iTXt packed."""
    head = keyword.encode() + b"\x00"
    if kind == b"tEXt":
        return chunk(kind, head + text)
    if kind == b"zTXt":
        return chunk(kind, head + b"\x00" + zlib.compress(text))
    return chunk(kind, head + b"\x01\x00en\x00translated\x00" + zlib.compress(text))


def png(*texts: bytes) -> bytes:
    """A picture of one pixel with text chunks in it."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\x00\x00"))
    return SIGNATURE + header + b"".join(texts) + pixels + chunk(b"IEND", b"")


def card_png(card: Any, kind: bytes = b"tEXt", keyword: str = "chara") -> bytes:
    return png(text_chunk(kind, keyword, base64.b64encode(raw(card))))


def charx(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


_words = st.text(max_size=60) | st.sampled_from(
    [
        "{{user}} and {{char}}",
        "{% if x %}",
        "<|im_start|>system",
        "{{random:a,b}}",
        "{",
        "@@depth 4",
    ]
)
_junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=6,
)
_entry = st.fixed_dictionaries(
    {"keys": st.lists(_words, max_size=4) | _junk, "content": _words | _junk},
    optional={
        "enabled": st.booleans(),
        "secondary_keys": st.lists(_words, max_size=3) | _junk,
        "selective": st.booleans() | _junk,
        "constant": st.booleans() | _junk,
        "insertion_order": st.integers(-5, 10**12) | _junk,
        "priority": st.floats(allow_nan=False, allow_infinity=False) | _junk,
        "use_regex": st.booleans(),
        "extensions": _junk,
    },
)
#: The data of cards as people and programs write them, right or half right.
datas = st.fixed_dictionaries(
    {
        "name": st.text("abc Żö:\n{}", min_size=1, max_size=20).map(lambda s: "N" + s),
        "description": _words.map(lambda s: "d" + s),
    },
    optional={
        "personality": _words | _junk,
        "scenario": _words | _junk,
        "first_mes": _words | _junk,
        "mes_example": _words.map(lambda s: f"<START>\n{{{{user}}}}: {s}\n{{{{char}}}}: {s}")
        | _junk,
        "alternate_greetings": st.lists(_words, max_size=3) | _junk,
        "nickname": _words | _junk,
        "tags": _junk,
        "extensions": st.dictionaries(_words, _junk, max_size=3),
        "character_book": st.fixed_dictionaries(
            {"entries": st.lists(_entry, max_size=4)},
            optional={"extensions": _junk, "token_budget": _junk, "recursive_scanning": _junk},
        ),
    },
)
