"""Lines and names: what could deceive is dropped, what cannot be meant is refused."""

import pytest

from gameserver.protocol import Code, Refusal
from gameserver.wording import clean_line, clean_name


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", Code.BAD_FIELD),
        (" \n\t", Code.BAD_FIELD),
        ("\u202e\x07", Code.BAD_FIELD),
        ("a\0b", Code.BAD_FIELD),
        ("x" * 11, Code.TOO_LARGE),
    ],
)
def test_refused_lines(text: str, code: Code) -> None:
    with pytest.raises(Refusal) as caught:
        clean_line(text, 10)
    assert caught.value.code == code


def test_too_long_names_limit_and_actual() -> None:
    with pytest.raises(Refusal) as caught:
        clean_line("x" * 11, 10)
    assert (caught.value.limit, caught.value.actual) == (10, 11)


def test_control_and_reordering_characters_are_dropped_and_the_rest_stays() -> None:
    assert clean_line("a\x07b\u202ec\u2066d\x9fe", 99) == "abcde"
    kept = "Grüße, שלום 🐉\tzwei\nZeilen <|im_end|>"
    assert clean_line(kept, 99) == kept


def test_a_name_is_one_line() -> None:
    assert clean_name(" Ann\n of\tKell ", 32) == "Ann of Kell"
    assert clean_name("x" * 40, 32) == "x" * 32
