"""Streams carry whole characters, no part of a stop string, and end where they should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.decoding.detokenize import Detokenizer, Pieces
from engine.decoding.stops import SentenceEnd, StopStrings
from engine.decoding.text import TextStream
from engine.params import SamplingParams


class ByteTokenizer:
    """Token n is byte n: every multi-byte character is cut."""

    vocab_size = 256
    concatenates = True

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


@given(st.text())
def test_characters_are_whole_and_none_is_lost(text: str) -> None:
    text = text.replace("\ufffd", "")
    stream = Detokenizer(Pieces(ByteTokenizer()))
    pieces = [stream.push(byte) for byte in text.encode("utf-8")]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


@given(st.lists(st.integers(0, 255)))
def test_bytes_that_are_no_text_never_stall_or_leak(data: list[int]) -> None:
    stream = Detokenizer(Pieces(ByteTokenizer()))
    said = "".join(stream.push(byte) for byte in data)
    assert "\ufffd" not in said
    tail = "".join(stream.push(ord("x")) for _ in range(8))
    assert tail.endswith("xxxxxxx")


@given(
    st.lists(st.text("ab\n", max_size=3)),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_exactly_and_nothing_of_them_gets_out(
    pieces: list[str], stops: list[str]
) -> None:
    checker = StopStrings(stops)
    shown, stopped = "", False
    for piece in pieces:
        text, stopped = checker.push(piece)
        shown += text
        assert not any(stop in shown for stop in stops)
        if stopped:
            break
    whole = "".join(pieces)
    cuts = [whole.find(stop) for stop in stops if stop in whole]
    if stopped:
        # The first stop string to be *completed* ends the stream; its start is the cut.
        assert whole.startswith(shown)
        assert any(whole[len(shown) :].startswith(stop) for stop in stops)
    else:
        assert not cuts
        assert shown + checker.flush() == whole


@pytest.mark.parametrize(
    ("text", "ends_at"),
    [
        ("Well met. Sit down.", "Well met."),
        ("It costs 3.50 gold. Pay.", "It costs 3.50 gold."),
        ("Mr. Oak is out. Later.", "Mr. Oak is out."),
        ("Wait... what? No.", "Wait..."),
        ('She said "Go!" And I went.', 'She said "Go!"'),
        ("よい。さあ", "よい。"),
        ("no end here", None),
        ("ends without space.", None),
    ],
)
def test_a_sentence_ends_where_a_reader_would_say_so(text: str, ends_at: str | None) -> None:
    sentence, shown, ended = SentenceEnd(), "", False
    for character in text:
        piece, ended = sentence.push(character, may_end=True)
        shown += piece
        if ended:
            break
    assert ended == (ends_at is not None)
    assert shown == (ends_at or text)


def test_a_sentence_may_end_only_after_enough_tokens() -> None:
    params = SamplingParams(max_tokens=100, sentence_after=6)
    stream = TextStream(Pieces(ByteTokenizer()), params, frozenset())
    shown, finish = "", None
    for byte in b"Ho. Ho ho. More":
        released = stream.push(byte)
        shown += released.text
        if released.finish:
            finish = released.finish
            break
    assert (shown, finish) == ("Ho. Ho ho.", "stop")


def test_the_length_limit_releases_held_text_but_no_half_character() -> None:
    params = SamplingParams(max_tokens=3, stop=("bcd",))
    stream = TextStream(Pieces(ByteTokenizer()), params, frozenset())
    released = [stream.push(b) for b in b"ab\xc3"]
    assert "".join(r.text for r in released) == "ab"
    assert released[-1].finish == "length"


def test_eos_flushes_what_a_stop_string_had_held_back() -> None:
    stream = TextStream(
        Pieces(ByteTokenizer()), SamplingParams(max_tokens=9, stop=("\nBob:",)), frozenset({0})
    )
    released = [stream.push(b) for b in b"hi\nB\0"]
    assert "".join(r.text for r in released) == "hi\nB"
    assert released[-1].finish == "stop"
