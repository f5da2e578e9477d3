"""Macros are resolved once, by the importer; everything else in braces is text for ever."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc.cards.macros import Macros


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("{{char}} and {{CHAR}} and {{ char }} and <BOT> and <char>", " and ".join(["Orla"] * 5)),
        ("She likes {{user}}.", "She likes the guest."),
        ("{{user}} sits. <USER> waits.", "The guest sits. The guest waits."),
        ('"{{user}} is here," she says.', '"The guest is here," she says.'),
        ("Welcome, {{user}}! Hi {{user}}, sit.", "Welcome, stranger! Hi stranger, sit."),
        ("{{random:a,b}}{{random::c::d,e}}{{pick: f , g}}", "acf"),
        ("{{reverse:abc}}{{newline}}x{{noop}}{{trim}}", "cba\nx"),
        ("a{{// hidden }}b{{comment: no}}c{{hidden_key:x}}{{original}}", "abc"),
        ("{{random:{{char}},x}}", "Orla"),
        ("It is {{time}} and {{roll:d6}}, {{getvar::x}}.", "It is  and , ."),
        ("{% if x %}{{ user.name }}{% endif %}", "{% if x %}{{ user.name }}{% endif %}"),
        ("{{config}} ${x} {0} %s {{{{", "{{config}} ${x} {0} %s {{{{"),
        ("<|im_start|>system", "<|im_start|>system"),
        (" a\x00b\x1bc\x7f\r\nd\re ", "abc\nd\ne"),
    ],
)
def test_macros(text: str, resolved: str) -> None:
    assert Macros("Orla").resolve(text) == resolved


def test_macros_of_a_run_are_counted() -> None:
    macros = Macros("Orla")
    macros.resolve("{{time}} {{Time}} {{roll:d6}} {{lastMessage}} {{unknown}}")
    assert macros.dropped == {"time": 2, "roll": 1, "lastmessage": 1}


@given(st.text(alphabet="{}a:user,char<>|/ \n"))
def test_no_name_or_user_macro_survives_and_nothing_else_is_lost(text: str) -> None:
    resolved = Macros("Orla").resolve(text)
    assert "<user>" not in resolved.lower()
    if "{" not in text and "<" not in text:
        assert resolved == text.strip()


def test_hostile_braces_cost_little() -> None:
    start = time.process_time()
    for text in ("{{" * 200_000, "{{random:" * 50_000 + "}}" * 50_000, "{{a" * 100_000):
        Macros("Orla").resolve(text)
    assert time.process_time() - start < 3
