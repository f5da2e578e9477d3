"""What a turn that may act asks of the engine, and how urgent it is."""

from dataclasses import replace
from typing import cast

import pytest

from engine.tokenizer import Tokenizer
from npc.actions.channels import Piece
from npc.actions.offer import TOKENS, Offer, Open
from npc.dialogue import TurnRequest
from npc.persona import Example, Persona
from npc.priority import Priorities
from npc.prompt import PromptWriter
from npc.settings import ReplySettings
from scenes.actions import USUAL, markup
from tests.npc.stage import (
    CHATML,
    MIRA,
    ByteTokenizer,
    RecordingEngine,
    Submitted,
    dialogue,
    line,
    readable,
)

OFFER = Offer((Open("follow"),))


def submitted(persona: Persona = MIRA, **request: object) -> Submitted:
    engine = RecordingEngine()
    talk = dialogue(engine, persona)
    talk.begin(TurnRequest("t1", line("Hi!"), **request), print)  # type: ignore[arg-type]
    return engine.submitted[0]


def test_an_npc_that_only_talks_pays_nothing_for_actions() -> None:
    params = submitted().params
    assert params.grammar is None
    assert params.max_tokens == ReplySettings().max_tokens
    assert params.sentence_after == ReplySettings().sentence_after


def test_a_turn_that_may_act_has_a_grammar_room_for_it_and_ends_its_sentence_itself() -> None:
    params = submitted(offer=OFFER).params
    assert params.grammar == OFFER.grammar()
    assert params.max_tokens == ReplySettings().max_tokens + TOKENS
    assert params.sentence_after is None
    assert params.logit_bias == {ord("["): ReplySettings().act_bias}
    talk, after = dialogue(RecordingEngine()), ReplySettings().sentence_after
    acting, talking = TurnRequest("t", line("Hi!"), offer=OFFER), TurnRequest("t", line("Hi!"))
    assert not talk.said_enough(acting, after)
    assert talk.said_enough(acting, after + 1)
    assert not talk.said_enough(talking, after + 1), "the engine sees to it"


def test_a_turn_in_which_nothing_is_open_is_as_short_as_any_and_has_no_brackets() -> None:
    params = submitted(offer=Offer(())).params
    assert params.max_tokens == ReplySettings().max_tokens
    assert params.grammar is not None
    assert not params.logit_bias


@pytest.mark.parametrize(
    ("kind", "urgent", "as_kind"),
    [
        ("quest_giver", None, "quest_giver"),
        ("quest_giver", True, "quest_giver"),
        ("quest_giver", False, "host"),
        ("ambient", True, "quest_giver"),
        ("ambient", False, "ambient"),
    ],
)
def test_the_class_follows_the_quest_if_it_is_to(
    kind: str, urgent: bool | None, as_kind: str
) -> None:
    persona = replace(MIRA, kind=kind)
    assert submitted(persona, urgent=urgent).priority == Priorities().of(as_kind)


def test_examples_and_descriptions_show_how_an_action_is_written() -> None:
    trade = USUAL["trade"]
    sold = Example("A rope!", "Here.", markup("trade", {"item": "rope", "price": 6}))
    persona = replace(MIRA, actions=(trade, USUAL["follow"]), examples=(sold,))
    tokenizer = cast(Tokenizer, ByteTokenizer())
    text = readable(PromptWriter(tokenizer, CHATML).persona(persona))
    assert '\n- [trade {"item":…,"price":…}] sells something\n- [follow] goes along' in text
    assert '<npc>Here. [trade {"item":"rope","price":6}]</npc>' in text


def test_what_a_script_says_is_plain_if_its_npc_only_talks() -> None:
    engine = RecordingEngine(scripted=True, scripted_length=9)
    talk = dialogue(engine)
    plain = talk.channels(TurnRequest("t", line("Hi!")))
    assert plain.push("*bows* ") == [Piece("speech", "*bows* ")]


def test_an_npc_that_can_act_does_not_read_actions_that_others_have_written() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, replace(MIRA, actions=(USUAL["trade"],)))
    typed = markup("trade", {"item": "rope", "price": 1})
    talk.hear(line(typed, "mira", kind="observed"))
    talk.hear(line(f"Say {typed}", id="m1"))
    talk.begin(TurnRequest("t1", line(f"Now {typed}")), print)
    text = engine.submitted[0].text
    assert "[trade" not in text
    assert text.count('(trade {"item":"rope","price":1})') == 3
    assert typed in submitted_line(typed), "others read what was said"


def submitted_line(text: str) -> str:
    engine = RecordingEngine()
    dialogue(engine).begin(TurnRequest("t1", line(text)), print)
    return engine.submitted[0].text
