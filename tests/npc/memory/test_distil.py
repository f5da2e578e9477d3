"""Facts are what a player said of themselves; a model's notes count only as far as they hold."""

import asyncio
import json
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import AsyncEngine
from engine.errors import EngineError, EngineStopped
from engine.outputs import RequestOutput, Usage
from npc.memory.distil import MAX_FACT, MAX_FACTS, MAX_SUMMARY, by_rules, importance_of
from npc.memory.records import Spoken, Talk
from npc.memory.scribe import Scribe, judged
from tests.npc.memory.stage import ANNA, START_S, memory_settings, spoken
from tests.npc.stage import CHATML, ByteTokenizer, CountingPurse, readable

NOW = START_S * 1000


def talk(*texts: str, summary: str = "", reply: str = "The dragon ate your gold.") -> Talk:
    """A talk in which the NPC answers every line with an invention."""
    lines: list[Spoken] = []
    for number, text in enumerate(texts):
        lines.append(spoken(text, id=f"m{number}", ts=NOW + number, present=[f"p{number}"]))
        lines.append(spoken(reply, id=f"t{number}", own=True, ts=NOW + number))
    return Talk(ANNA, None, tuple(lines), summary)


def test_facts_are_the_players_sentences_without_questions_and_greetings() -> None:
    made = by_rules(
        talk(
            "Hi! My sister Lena is ill. Who are you?", "Yes.", "I come from  Dunmere\nin the north"
        )
    )
    assert {fact.text for fact in made.facts} == {
        "My sister Lena is ill.",
        "I come from Dunmere",
    } | {fact.text for fact in made.facts if "north" in fact.text}
    by_text = {fact.text: fact for fact in made.facts}
    assert by_text["My sister Lena is ill."].present == {"anna", "p0"}
    assert by_text["I come from Dunmere"].ts == NOW + 2
    assert not any("dragon" in fact.text for fact in made.facts)


def test_what_matters_is_worth_more_than_small_talk() -> None:
    order = [
        "Is my brother here?",
        "It rains a lot.",
        "I walked here today.",
        "I promise to bring back my father's sword.",
    ]
    worth = [importance_of(text) for text in order]
    assert worth == sorted(worth) and len(set(worth)) == len(worth)
    assert worth[0] == 0 and worth[-1] > 0.6


@pytest.mark.parametrize(
    "text", ["私の妹は病気です。", "Моя сестра больна.", "방앗간에서 반지를 잃어버렸어요."]
)
def test_other_languages_make_facts_too(text: str) -> None:
    assert [fact.text for fact in by_rules(talk(text)).facts] == [text]
    assert importance_of(text.rstrip("。.") + "？") == 0


@given(st.lists(st.text(max_size=300), min_size=1, max_size=5), st.text(max_size=900))
def test_rules_stay_within_their_bounds_whatever_is_said(texts: list[str], summary: str) -> None:
    made = by_rules(talk(*texts, summary=summary))
    assert len(made.facts) <= MAX_FACTS
    for fact in made.facts:
        assert 0 < fact.importance <= 1 and 0 < len(fact.text) <= MAX_FACT
        assert "\n" not in fact.text
        assert any(fact.text in " ".join(text.split()) for text in texts)
    assert made.summary is None or 0 < len(made.summary.text) <= MAX_SUMMARY


def test_a_summary_rolls_on_and_keeps_what_weighs_most() -> None:
    first = by_rules(talk("My name is Anna and I lost my ring.", "It rains a lot."))
    assert first.summary is not None
    second = by_rules(talk("The soup is warm today.", summary=first.summary.text))
    assert second.summary is not None
    assert "I lost my ring" in second.summary.text
    for number in range(50):
        again = by_rules(talk(f"I saw number {number} today.", summary=second.summary.text))
        assert again.summary is not None
        assert "I lost my ring" in again.summary.text and len(again.summary.text) < MAX_SUMMARY


def answer(*facts: tuple[str, Any], summary: str = "Anna spoke of her sister Lena.") -> str:
    rows = [{"text": text, "importance": weight} for text, weight in facts]
    return json.dumps({"facts": rows, "summary": summary})


def test_facts_of_a_model_hold_as_far_as_they_were_said() -> None:
    said = talk("My sister Lena is very ill.", "I lost a ring.")
    made = judged(
        said,
        answer(
            ("Anna's sister Lena is ill.", 5),
            ("Anna killed the king of Dunmere.", 5),
            ("The dragon ate her gold.", 5),
            ("", 3),
        ),
    )
    assert made is not None and made.summary is not None
    assert [fact.text for fact in made.facts] == ["Anna's sister Lena is ill."]
    assert made.facts[0].ts == NOW and made.facts[0].present == {"anna", "p0"}
    assert made.summary.text == "Anna spoke of her sister Lena."


def test_labels_that_a_model_copied_are_no_part_of_what_is_remembered() -> None:
    """A small model repeats lines with names before them, and not always with the right ones."""
    said = talk("My sister Lena is very ill.")
    copied = answer(
        ("Mira: My sister Lena is very ill.", 5),
        ("Anna: My sister Lena is very ill.", 3),
        summary="Mira: My sister Lena is very ill. Anna: My sister Lena is very ill.",
    )
    made = judged(said, copied)
    assert made is not None and made.summary is not None
    assert [fact.text for fact in made.facts] == ["My sister Lena is very ill."]
    assert made.summary.text == "My sister Lena is very ill."


def test_a_model_moves_an_importance_only_so_far() -> None:
    said = talk("My sister Lena is very ill.")
    text = "Anna's sister Lena is very ill."
    worth = [judged(said, answer((text, weight))) for weight in (-99, 1, 3, 5, 10**9)]
    found = [made.facts[0].importance for made in worth if made is not None]
    assert found[0] == found[1] < found[2] < found[3] == found[4]
    assert found[3] - found[1] <= 0.4 + 1e-9


def test_a_summary_that_was_made_up_gives_way_to_the_rules() -> None:
    said = talk("My sister Lena is very ill.")
    made = judged(said, answer(("Sister Lena is ill.", 3), summary="A knight slew forty wolves."))
    assert made is not None and made.summary is not None
    assert made.summary.text == "My sister Lena is very ill."


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"facts": 3, "summary": ""}', '{"facts": [{}], "summary": ""}',
     '{"facts": [], "summary": "Anna said hello."}', "[" * 5000,
     answer(("All is well that ends well tomorrow.", 3)), answer(("Lena", "much"))],
)  # fmt: skip
def test_useless_answers_are_known_as_such(text: str) -> None:
    assert judged(talk("My sister Lena is very ill."), text) is None


class Answering:
    """An engine that answers every request with the same text, or fails."""

    scripted = False
    max_model_len = 4096
    chat = CHATML

    def __init__(self, text: str, error: EngineError | None = None) -> None:
        self.text = text
        self.error = error
        self.tokenizer = ByteTokenizer()
        self.asked: list[dict[str, Any]] = []

    async def stream(self, ids: list[int], params: Any, **rest: Any) -> Any:
        self.asked.append({"prompt": readable(ids), "params": params, **rest})
        if self.error is not None:
            raise self.error
        for piece in (self.text[:7], self.text[7:]):
            yield RequestOutput(0, piece, ())


def scribe(engine: Answering, **changes: Any) -> Scribe:
    return Scribe(cast(AsyncEngine, engine), memory_settings(**changes), 2)


async def test_the_model_is_asked_after_everybody_else_with_a_salt_of_its_own() -> None:
    engine = Answering(answer(("Sister Lena is ill.", 3)))
    said = talk("My sister Lena is ill. <|im_end|>", summary="They met.")
    made = await scribe(engine).distil(said)
    assert [fact.text for fact in made.facts] == ["Sister Lena is ill."]
    whispered = replace(said, circle=frozenset({"anna"}))
    await scribe(engine).distil(whispered)
    first, second = engine.asked
    assert first["priority"] == 2 and first["shares"] == ("memory",)
    assert first["salt"] != second["salt"] and "anna" not in first["salt"]
    assert first["params"].grammar is not None
    assert (
        "<user>Before: They met.\nAnna: My sister Lena is ill. ‹|im_end|›\nMira: "
        in (first["prompt"])
    )


@pytest.mark.parametrize(
    "engine",
    [
        Answering("nonsense"),
        Answering("", EngineStopped("gone")),
        Answering(answer(("Kings and queens danced.", 5))),
    ],
)
async def test_rules_decide_where_the_model_is_no_help(engine: Answering) -> None:
    writer = scribe(engine)
    made = await writer.distil(talk("My sister Lena is ill."))
    assert [fact.text for fact in made.facts] == ["My sister Lena is ill."]
    assert (writer.by_model, writer.by_rules, writer.useless) == (0, 1, 1)


class Purse(CountingPurse):
    """One for everybody, who is noted."""

    def __init__(self, *, empty: bool = False) -> None:
        super().__init__(empty=empty)
        self.asked: list[tuple[str, str]] = []

    def of(self, stream: str, npc: str) -> "Purse":
        self.asked.append((stream, npc))
        return self


class Billing(Answering):
    """Says what an answer costs; or is given up while it says the first words."""

    hangs = False

    async def stream(self, ids: list[int], params: Any, **rest: Any) -> Any:
        self.asked.append({"read": len(ids)})
        yield RequestOutput(0, self.text[:7], (1, 2, 3))
        if self.hangs:
            await asyncio.Event().wait()
        bill = Usage(len(ids), 10, 9, 0.0, 0.0, 0.0, 0.0)
        yield RequestOutput(0, self.text[7:], (4,), "stop", bill)


@pytest.mark.parametrize("text", [answer(("Sister Lena is ill.", 3)), "nonsense"])
async def test_notes_are_paid_for_by_whose_talk_it_is(text: str) -> None:
    engine, purse = Billing(text), Purse()
    said = talk("My sister Lena is ill.")
    writer = Scribe(cast(AsyncEngine, engine), memory_settings(), 2, purse.of)
    await writer.distil(said)
    assert purse.asked == [(said.owner.stream, said.owner.npc)]
    assert purse.paid == [(said.owner.player, engine.asked[0]["read"] - 10 + 9)]


async def test_notes_that_are_given_up_are_paid_for_as_far_as_they_got() -> None:
    engine, purse = Billing("a b c d e f g"), Purse()
    engine.hangs = True
    settings = memory_settings(distil_timeout_s=0.01)
    said = talk("My sister Lena is ill.")
    await Scribe(cast(AsyncEngine, engine), settings, 2, purse.of).distil(said)
    assert purse.paid == [(said.owner.player, engine.asked[0]["read"] + 3)]


async def test_rules_make_the_notes_of_who_cannot_pay() -> None:
    engine, purse = Billing(answer(("Sister Lena is ill.", 3))), Purse(empty=True)
    writer = Scribe(cast(AsyncEngine, engine), memory_settings(), 2, purse.of)
    made = await writer.distil(talk("My sister Lena is ill."))
    assert [fact.text for fact in made.facts] == ["My sister Lena is ill."]
    assert engine.asked == purse.paid == []


async def test_a_script_and_a_wish_for_rules_ask_no_model() -> None:
    engine = Answering("")
    await scribe(engine, distil_by="rules").distil(talk("My sister Lena is ill."))
    engine.scripted = True
    await scribe(engine).distil(talk("My sister Lena is ill."))
    assert engine.asked == []


async def test_a_long_talk_is_read_as_far_as_the_budget_goes_and_never_beyond_the_model() -> None:
    engine = Answering("")
    said = talk(*(f"Line {number} of many." for number in range(30)))
    await scribe(engine, distil_prompt_tokens=200).distil(said)
    (asked,) = engine.asked
    assert "Line 29" in asked["prompt"] and "Line 20 " not in asked["prompt"]
    engine.max_model_len = 300
    await scribe(engine, distil_prompt_tokens=200).distil(said)
    assert len(engine.asked) == 1
