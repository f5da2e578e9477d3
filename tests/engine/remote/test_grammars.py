"""Each kind of server is told of a grammar in its own words."""

import json
import re

import pytest

from engine.grammar import KINDS, Grammar, Kind
from engine.remote.grammars import TRIALS, WAYS
from tests.engine.remote.stage import GRAMMARS

SCHEMA = {"type": "object"}
GIVEN: dict[Kind, Grammar] = {
    "json_schema": Grammar.json_schema(SCHEMA),
    "regex": Grammar.regex("a+"),
    "choice": Grammar.choice(["a.b", "c"]),
    "lark": Grammar.lark('start: "a"'),
}
BY_NAME = {way.name: way for way in WAYS}


def said(way: str) -> dict[Kind, object]:
    return {kind: BY_NAME[way].fields(GIVEN[kind]) for kind in sorted(BY_NAME[way].kinds)}


def test_vllm_is_told_by_one_field() -> None:
    assert said("structured_outputs") == {
        "json_schema": {"structured_outputs": {"json": SCHEMA}},
        "regex": {"structured_outputs": {"regex": "a+"}},
        "choice": {"structured_outputs": {"choice": ["a.b", "c"]}},
        "lark": {"structured_outputs": {"grammar": 'start: "a"'}},
    }


def test_older_vllm_and_nim_by_another_for_each_kind() -> None:
    older = said("guided_*")
    assert older["json_schema"] == {"guided_json": SCHEMA}
    assert older["lark"] == {"guided_grammar": 'start: "a"'}
    assert said("nvext") == {kind: {"nvext": fields} for kind, fields in older.items()}


def test_sglang_takes_schemas_as_text_and_choices_as_an_expression() -> None:
    told = said("regex/ebnf/json_schema")
    assert told["json_schema"] == {"json_schema": json.dumps(SCHEMA)}
    assert told["lark"] == {"ebnf": 'start: "a"'}
    (expression,) = told["choice"].values()  # type: ignore[attr-defined]
    assert [bool(re.fullmatch(expression, text)) for text in ("a.b", "c", "axb")] == [
        True,
        True,
        False,
    ]


def test_llama_server_knows_by_the_first_line_whose_grammar_it_is() -> None:
    assert said("grammar/json_schema") == {
        "json_schema": {"json_schema": SCHEMA},
        "lark": {"grammar": '%llguidance {}\nstart: "a"'},
    }


def test_openai_takes_schemas_only() -> None:
    ((kind, fields),) = said("response_format").items()
    assert kind == "json_schema"
    assert fields["response_format"]["json_schema"]["schema"] == SCHEMA  # type: ignore[index]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_trial_is_followed_by_no_chance(kind: Kind) -> None:
    constraint = GRAMMARS.check(TRIALS[kind])
    assert constraint.matcher.deep_copy().is_accepting() is False
    assert TRIALS[kind].kind == kind
    assert any(kind in way.kinds for way in WAYS)
