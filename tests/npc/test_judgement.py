"""A model judges a turn behind everybody else, and can say nothing but a verdict."""

import re
from dataclasses import replace

import pytest

from engine.api import AsyncEngine
from engine.errors import QueueFull
from engine.outputs import RequestOutput, Usage
from npc.dialogue import Dialogue, TurnRequest
from npc.judgement import GRAMMAR, Verdict, read_verdict
from npc.relations import Relation
from npc.settings import FeelingSettings, ReplySettings
from scenes.reactions import MOODS, Shift
from tests.gameserver.stage import byte_model
from tests.npc.stage import CountingPurse, RecordingEngine, dialogue, line

JUDGED = ReplySettings(feelings=FeelingSettings(judge=True))
RISING = "trust: rising, affection: the same, fear: falling, mood: amused"


def turn(talk: Dialogue, text: str, *, number: int = 0, whispered: bool = False) -> None:
    said = line(text, audience=frozenset({"anna"}) if whispered else None)
    request = TurnRequest(f"t{number}", said, said.audience)
    talk.begin(request, print)
    talk.commit(request, "Well, well.", 1, "completed", 0)


def answer(engine: RecordingEngine, text: str) -> None:
    """The engine's answer to the newest request, in two steps."""
    for part, finish in ((text[:9], None), (text[9:], "stop")):
        engine.submitted[-1].on_output(RequestOutput(0, part, (), finish))  # type: ignore[arg-type]


def test_a_turn_is_judged_after_it_at_the_lowest_priority_from_what_its_hearers_heard() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, settings=JUDGED)
    turn(talk, "Nobody else shall know.", number=1, whispered=True)
    _, asked = engine.submitted
    assert asked.priority == JUDGED.priorities.ambient
    assert asked.params.grammar == GRAMMAR
    assert asked.salt == "inn:anna"
    assert asked.text.startswith("<user>Anna: Nobody else shall know.</user><npc>Well, well.")
    answer(engine, RISING)
    assert talk.feelings.relations.of("anna") == Relation(2)
    assert talk.feelings.seen.of("anna") == Relation()
    assert talk.feelings.mood.at(0).name == "neutral"
    turn(talk, "Hello!", number=2)
    assert "Nobody" not in engine.submitted[-1].text
    answer(engine, RISING)
    assert talk.feelings.relations.of("anna") == Relation(4)
    assert talk.feelings.mood.at(0).name == "amused"


@pytest.mark.parametrize("text", [RISING, "no verdict at all"])
def test_what_a_verdict_costs_is_paid_for_whatever_it_says(text: str) -> None:
    engine, purse = RecordingEngine(), CountingPurse()
    talk = dialogue(engine, settings=JUDGED)
    talk.purse = purse
    turn(talk, "Hello!")
    bill = Usage(100, 60, 7, 0.0, 0.0, 0.0, 0.0)
    engine.submitted[-1].on_output(RequestOutput(0, text, (), "stop", bill))
    assert purse.paid == [("anna", 47)]
    assert [asked.shares[0] for asked in engine.submitted] == ["player acme/anna"] * 2


def test_who_cannot_pay_is_not_judged() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, settings=JUDGED)
    talk.purse = CountingPurse(empty=True)
    turn(talk, "Hello!")
    assert len(engine.submitted) == 1


def test_one_turn_at_a_time_is_judged() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, settings=JUDGED)
    turn(talk, "One.", number=1)
    turn(talk, "Two.", number=2)
    assert [sent.params.grammar for sent in engine.submitted].count(GRAMMAR) == 1


@pytest.mark.parametrize("text", ["", "trust: rising, aff", "You trust me now."])
def test_what_is_no_verdict_changes_nothing(text: str) -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, settings=JUDGED)
    turn(talk, "One.", number=1)
    answer(engine, text)
    assert talk.feelings.relations.of("anna") == Relation()
    turn(talk, "Two.", number=2)
    assert engine.submitted[-1].params.grammar == GRAMMAR


def test_an_engine_that_is_full_judges_nothing_and_the_turn_stands() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, settings=JUDGED)
    request = TurnRequest("t", line("One."))
    talk.begin(request, print)
    engine.refuse = QueueFull(1, 1000)
    talk.commit(request, "Well, well.", 1, "completed", 0)
    assert talk.history(player="anna", before=None, limit=9)[0][-1].text == "Well, well."


def test_nobody_judges_unless_asked_to_or_where_replies_come_from_a_script() -> None:
    for engine, settings in (
        (RecordingEngine(), ReplySettings()),
        (RecordingEngine(scripted=True, scripted_length=5), JUDGED),
    ):
        turn(dialogue(engine, settings=settings), "One.")
        assert len(engine.submitted) == 1


def test_every_text_of_the_grammar_is_a_verdict() -> None:
    assert read_verdict(RISING) == Verdict(Shift(1, 0, -1), "amused")
    for mood in MOODS:
        text = f"trust: the same, affection: falling, fear: the same, mood: {mood}"
        assert re.fullmatch(GRAMMAR.source, text)
        verdict = read_verdict(text)
        assert verdict is not None
        assert verdict == replace(Verdict(Shift(0, -1, 0), ""), mood=mood * (mood != "neutral"))


async def test_an_engine_can_be_held_to_verdicts() -> None:
    engine = AsyncEngine(byte_model(["Hm."]))
    await engine.prepare(GRAMMAR)
    assert engine.conforms(GRAMMAR, RISING)
    assert not engine.conforms(GRAMMAR, RISING.replace("rising", "soaring"))
