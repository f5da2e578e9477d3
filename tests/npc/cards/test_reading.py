"""Every published form of a card is read; what is damaged or hostile is refused with its reason."""

import base64
import json
import struct
import time
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npc.cards.card import MAX_FILE, parse_card, read_card, write_card
from npc.cards.errors import CardError
from npc.cards.text import MAX_DEPTH, MAX_JSON, MAX_NODES
from tests.npc.cards.published import (
    V1,
    V2_DATA,
    V3_DATA,
    card_png,
    charx,
    chunk,
    datas,
    png,
    raw,
    text_chunk,
    v2,
    v3,
)

CARD = base64.b64encode(raw(v2()))
ITXT_PLAIN = chunk(b"iTXt", b"chara\x00\x00\x00\x00\x00" + CARD)


@pytest.mark.parametrize(
    ("file", "version", "data"),
    [
        (raw(V1), 1, V1),
        (raw(v2()), 2, V2_DATA),
        (raw(v3()), 3, V3_DATA),
        (b"\xef\xbb\xbf" + raw(v3()), 3, V3_DATA),
        (card_png(v2()), 2, V2_DATA),
        (card_png(v2(), b"zTXt"), 2, V2_DATA),
        (card_png(v3(), b"iTXt", "ccv3"), 3, V3_DATA),
        (card_png(v2(), keyword="Chara"), 2, V2_DATA),
        (png(ITXT_PLAIN), 2, V2_DATA),
        (charx({"card.json": raw(v3()), "assets/icon/1.png": b"x"}), 3, V3_DATA),
        (charx({"card.json": raw(v3())}, zipfile.ZIP_STORED), 3, V3_DATA),
    ],
)
def test_every_form_is_read(file: bytes, version: int, data: dict[str, Any]) -> None:
    card = parse_card(file)
    assert (card.version, card.data) == (version, data)
    assert (card.picture is not None) == file.startswith(b"\x89PNG")


def test_of_two_cards_in_a_picture_the_newer_format_counts() -> None:
    texts = [
        text_chunk(b"tEXt", name, base64.b64encode(raw(card)))
        for name, card in (("chara", v2()), ("ccv3", v3()))
    ]
    assert parse_card(png(*texts)).version == 3
    kept = parse_card(png(*texts)).picture
    assert kept == png()


@given(datas, st.sampled_from([".json", ".png", ".charx"]))
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_back(data: dict[str, Any], suffix: str) -> None:
    """Unknown fields and extensions too."""
    assert parse_card(write_card(data, 3, suffix, None)).data == data


def nested(depth: int) -> bytes:
    return b'{"name":"a","description":"b","extensions":' + b"[" * depth + b"]" * depth + b"}"


def broken_checksum() -> bytes:
    whole = card_png(v2())
    at = whole.index(CARD[:20]) + 5
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


BOMB = zlib.compress(b"A" * (64 << 20), 9)
HUGE_TEXT = b"x" * (MAX_JSON * 2)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "damaged"),
        (b"hello", "damaged"),
        (b"[1]", "not_a_card"),
        (b"{}", "missing"),
        (raw({"name": "Orla"}), "missing"),
        (raw({"name": " \u200b", "description": "x"}), "missing"),
        (raw({"name": ["Orla"], "description": "x"}), "missing"),
        (raw(v2([])), "missing"),
        (raw({"spec": "chara_card_v9", "data": V1}), "not_a_card"),
        (json.dumps(V1).encode("utf-16"), "encoding"),
        (json.dumps(V1).encode("utf-16-le"), "encoding"),
        (json.dumps(V1).encode("utf-32"), "encoding"),
        (raw(V1)[:-2] + b"\xff\xfe}", "encoding"),
        (b'{"name":"\\ud800","description":"x"}', "damaged"),
        (b'{"name":"a","description":NaN}', "damaged"),
        (raw(V1) + b"}", "damaged"),
        (nested(MAX_DEPTH), "too_deep"),
        (nested(900), "too_deep"),
        (nested(50_000), "damaged"),
        (nested(MAX_NODES + 1), "too_large"),
        (b'{"name":"' + HUGE_TEXT + b'"}', "too_large"),
        (png(), "not_a_card"),
        (png(text_chunk(b"tEXt", "comment", CARD)), "not_a_card"),
        (card_png(v2())[:-20], "damaged"),
        (card_png(v2())[:60], "damaged"),
        (broken_checksum(), "damaged"),
        (png(struct.pack(">I4s", 0xFFFFFFFF, b"tEXt")), "damaged"),
        (png(text_chunk(b"tEXt", "chara", b"!" + CARD)), "damaged"),
        (png(text_chunk(b"tEXt", "chara", CARD[:-3])), "damaged"),
        (png(chunk(b"zTXt", b"chara\x00\x00" + BOMB)), "too_large"),
        (png(chunk(b"iTXt", b"chara\x00\x01\x00\x00\x00" + BOMB)), "too_large"),
        (png(chunk(b"zTXt", b"chara\x00\x07" + zlib.compress(CARD))), "damaged"),
        (png(chunk(b"zTXt", b"chara\x00\x00" + zlib.compress(CARD)[:-9])), "damaged"),
        (png(chunk(b"zTXt", b"chara\x00\x00junk")), "damaged"),
        (png(chunk(b"tEXt", b"chara")), "damaged"),
        (charx({"card.json": b" " * (64 << 20)}), "too_large"),
        (charx({"card.json": raw(v3())}, zipfile.ZIP_BZIP2), "damaged"),
        (charx({"card.json": raw(v3())}, zipfile.ZIP_LZMA), "damaged"),
        (charx({"other.json": raw(v3())}), "not_a_card"),
        (charx({"card.json": raw(v3()), "../../up.txt": b"x"}), "damaged"),
        (charx({"card.json": raw(v3()), "/etc/x": b"x"}), "damaged"),
        (charx({"card.json": raw(v3()), "a\\..\\..\\x": b"x"}), "damaged"),
        (charx({"card.json": raw(v3())})[:-30], "damaged"),
        (charx({"card.json": raw(v3())}) + b"PK\x01\x02" * 10_001, "too_large"),
        (charx({"card.json": raw(v3())}).replace(b"card.json", b"card.jso\xff", 1), "damaged"),
    ],
)
def test_refusals_have_a_reason_and_cost_little(file: bytes, reason: str) -> None:
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(CardError) as caught:
            parse_card(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.reason == reason, caught.value.problem
    assert len(caught.value.problem) < 300
    assert time.process_time() - start < 3
    assert peak < 48 << 20


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "huge.png"
    with file.open("wb") as stream:
        stream.truncate(200 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(CardError) as caught:
            read_card(file)
        assert tracemalloc.get_traced_memory()[1] < 2 * MAX_FILE
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "too_large"
    with pytest.raises(CardError, match="No such file"):
        read_card(tmp_path / "none.png")


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04", b"{"]))
def test_any_bytes_are_a_card_or_a_typed_refusal(data: bytes, head: bytes) -> None:
    with pytest.raises(CardError):
        parse_card(head + data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_is_a_card_or_a_typed_refusal(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([card_png(v2(), b"zTXt"), charx({"card.json": raw(v3())})]))
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for file in (bytes(damaged), whole[:cut]):
        try:
            card = parse_card(file)
        except CardError:
            continue
        assert card.data["name"] == "Orla"
