"""From bytes to pieces: nothing depends on where the network cuts."""

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.params import SamplingParams
from engine.remote.events import (
    MAX_EVENT_BYTES,
    Bill,
    EventReader,
    Nonsense,
    Piece,
    SaidNo,
    WholeCharacters,
    read_piece,
)
from engine.remote.packed import PackedTokenizer
from engine.remote.reply import Reply

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({place % (len(raw) + 1) for place in places} | {0, len(raw)})
    return [raw[start:end] for start, end in pairwise(edges)]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=8),
    ENDS,
    st.lists(st.integers(0, 10_000), max_size=40),
    st.booleans(),
    st.booleans(),
)
def test_text_is_the_same_however_the_stream_is_cut(
    texts: list[str], end: bytes, places: list[int], escaped: bool, closed: bool
) -> None:
    raw = b""
    for text in texts:
        chunk = {"choices": [{"delta": {"content": text}}]}
        raw += b": still here" + end + b"event: x" + end
        raw += b"data: " + json.dumps(chunk, ensure_ascii=escaped).encode() + end + end
    raw += b"data: [DONE]" + (end + end if closed else b"")
    reader, reply = EventReader(), Reply(SamplingParams(max_tokens=999), PackedTokenizer())
    pieces = [read_piece(data) for part in cut(raw, places) for data in reader.push(part)]
    pieces += [read_piece(data) for data in reader.flush()]
    said = "".join(reply.push(piece.text)[0].text for piece in pieces)
    assert said + reply.flush() == "".join(texts)
    assert [piece.done for piece in pieces] == [False] * len(texts) + [True]


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(0, 100)))
def test_a_character_in_two_halves_of_utf_16_is_whole_again(text: str, places: list[int]) -> None:
    units = text.encode("utf-16-le")
    halves = [part.decode("utf-16-le", "surrogatepass") for part in _pairs(units, places)]
    characters = WholeCharacters()
    assert "".join(map(characters.push, halves)) == text


def _pairs(units: bytes, places: list[int]) -> list[bytes]:
    return cut(units, [place * 2 for place in places if place * 2 <= len(units)])


@given(st.text())
def test_half_a_character_is_never_released(text: str) -> None:
    characters = WholeCharacters()
    said = characters.push(text) + characters.push("")
    said.encode()  # raises for a lone surrogate


def test_an_event_of_several_lines_is_one_text() -> None:
    assert EventReader().push(b"data: a\ndata: b\n\n") == [b"a\nb"]


@pytest.mark.parametrize("line", [b"data: x", b"data: x\n", b"x"])
def test_an_event_without_end_is_refused_before_memory_is_full(line: bytes) -> None:
    reader = EventReader()

    def never_end() -> None:
        for _ in range(MAX_EVENT_BYTES):
            reader.push(line * 1000)

    with pytest.raises(Nonsense, match="longer"):
        never_end()


def test_lines_that_are_no_data_take_no_memory() -> None:
    reader = EventReader()
    for _ in range(3):
        assert reader.push(b": waiting\n" * (MAX_EVENT_BYTES // 8)) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'{"choices":{}}',
        b'{"choices":[1]}',
        b'{"choices":[{"delta":3}]}',
        b'{"choices":[{"text":["a"]}]}',
        b'{"choices":[{"delta":{"content":{}}}]}',
        b"\xff\xfe",
        b"[" * 100_000,
        b"data",
        b'{"choices":[{"text":"caf\xc3"}]}',
    ],
)
def test_what_is_no_piece_of_a_reply_is_nonsense(data: bytes) -> None:
    with pytest.raises(Nonsense):
        read_piece(data)


@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_that(data: bytes) -> None:
    with suppress(Nonsense, SaidNo):
        read_piece(data)


@pytest.mark.parametrize(
    ("data", "piece"),
    [
        (b'{"choices":[{"text":"a","finish_reason":"length"}]}', Piece("a", "length")),
        (b'{"choices":[{"delta":{"role":"assistant","content":null}}]}', Piece()),
        (b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}', Piece()),
        (
            b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
            Piece(bill=Bill(3, 0, 2)),
        ),
        (
            b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,'
            b'"prompt_tokens_details":{"cached_tokens":1}}}',
            Piece(bill=Bill(3, 1, 2)),
        ),
        (b'{"choices":[],"usage":{"prompt_tokens":-3}}', Piece()),
        (b" [DONE] ", Piece(done=True)),
    ],
)
def test_pieces_of_all_servers_are_read(data: bytes, piece: Piece) -> None:
    assert read_piece(data) == piece


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":{"message":"out of memory","code":500}}',
        b'{"error":"out of memory"}',
        b'{"choices":[{"text":"","finish_reason":"abort"}]}',
        b'{"choices":[{"text":"","finish_reason":"tool_calls"}]}',
    ],
)
def test_a_reply_that_the_server_gives_up_is_no_reply(data: bytes) -> None:
    with pytest.raises(SaidNo):
        read_piece(data)
