"""docs/safety.md: what stands there runs."""

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from gameserver.settings import Settings
from npc.safety.filter import SpeechFilter
from npc.safety.redaction import Redactor
from npc.safety.rules import parse_rules
from npc.safety.settings import RedactionSettings

PAGE = (Path(__file__).parents[3] / "docs" / "safety.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def test_settings_are_settings() -> None:
    assert len(blocks("yaml")) == 3
    for block in blocks("yaml"):
        msgspec.convert(yaml.safe_load(block), Settings)


def test_rules_are_rules_and_do_what_is_said() -> None:
    (block,) = blocks("json")
    stream = SpeechFilter([parse_rules(block.encode())])
    assert stream.feed("Bl00dy rain. Call 555-1234.").text == "****** rain. Call (a number)."


def test_python_prints_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("python")
    exec(block, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"# (.*)", block)


def test_the_table_of_redaction_is_true() -> None:
    redactor = Redactor(RedactionSettings())
    rows = re.findall(r"^\| `(password|card|email|phone)` \| (.*) \| (.*) \|$", PAGE, re.M)
    assert len(rows) == 4
    for kind, taken, left in rows:
        for example in re.findall(r"`([^`]*)`", taken):
            if "…" not in example:
                assert redactor.redact(example).counts == {kind: 1}, example
        for example in re.findall(r"`([^`]*)`", left):
            assert not redactor.redact(example).counts, example
