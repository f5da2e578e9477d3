"""Files of rules: what is wrong in one is said, and where."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc.safety.rules import RulesError, load_rules, parse_rules

GOOD: dict[str, Any] = {"id": "rude", "action": "mask", "words": ["damn"]}


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"rules": [GOOD]}), "utf-8")
    assert [rule.id for rule in load_rules(file).rules] == ["rude"]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"words": []}, "needs words or patterns"),
        ({"words": ["a", ""]}, "length >= 1 - at `$.rules[0].words[1]`"),
        ({"words": ["x" * 201]}, "length <= 200"),
        ({"words": [" \u0301"]}, "has no letter in it"),
        ({"action": "shout"}, "Invalid enum value 'shout' - at `$.rules[0].action`"),
        ({"id": "a b"}, "at `$.rules[0].id`"),
        ({"word": ["a"]}, "unknown field `word`"),
        ({"patterns": ["a+"]}, "has no longest match"),
        ({"patterns": ["(){2}a"]}, "the empty text cannot be repeated"),
        ({"patterns": ["ab"], "ignore": ["leet"]}, "cannot be read as leet"),
        ({"with": "**"}, "mask writes one character"),
        ({"action": "block", "with": "x"}, "block writes nothing"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, entry: dict[str, Any], told: str) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"rules": [{**GOOD, **entry}]}), "utf-8")
    with pytest.raises(RulesError) as raised:
        load_rules(file)
    assert str(file) in str(raised.value)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    "pattern",
    [
        f"({'|'.join(['.?'] * 60)}){{199}}a",
        f"({'|'.join(['a?'] * 60)}){{199}}b",
        f"{'(' * 20}{'){200}' * 20}a",
        f"{'(|' * 20}{'){200}' * 20}a",
    ],
)
def test_no_pattern_takes_long_to_be_refused(pattern: str) -> None:
    """Few characters that stand for millions of ways, or for endless repetition of nothing."""
    rule = {"id": "x", "action": "mask", "patterns": [pattern]}
    began = time.process_time()
    with pytest.raises(ValueError, match=r"x: .*(more than|cannot be repeated)"):
        parse_rules(json.dumps({"rules": [rule]}).encode())
    assert time.process_time() - began < 10.0


def test_two_rules_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="the id rude is taken"):
        parse_rules(json.dumps({"rules": [GOOD, GOOD]}).encode())


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="No such file"):
        load_rules(tmp_path / "rules.json")
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (5 * 1024 * 1024))
    with pytest.raises(RulesError, match="is larger than"):
        load_rules(large)


@given(data=st.binary(max_size=60) | st.text('{}[]":,rules idwo', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):  # and nothing else
        assert parse_rules(data).rules == ()
