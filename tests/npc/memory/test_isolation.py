"""What was whispered reaches nobody else: not in a prompt, a summary, a fact, or what a model is
asked to sum up; it changes nothing in another's prompt, and is found in nobody's cache.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api import AsyncEngine
from engine.outputs import RequestOutput
from npc.dialogue import TurnRequest
from npc.memory.book import Book
from npc.memory.memories import Memories
from npc.memory.scribe import Scribe
from npc.memory.source import MemorySource
from npc.memory.vectors import HashingVectors
from npc.notes import Place
from npc.settings import ReplySettings
from npc.transcript import Audience
from tests.npc.memory.stage import DAY_S, Clock, memory_settings
from tests.npc.stage import CHATML, ByteTokenizer, RecordingEngine, dialogue, line, readable

PLAYERS = ("anna", "bob", "carl")
#: Small enough that histories are cut and come back as notes while the property is tested.
SMALL = ReplySettings(history_tokens=150, transcript_lines=6)
_MARK = re.compile(r"mark(\d+)x")


@dataclass(frozen=True)
class Event:
    """A line, who hears it, and what happens then; `silent`: the line is not said."""

    who: str = ""
    audience: Audience = None
    answered: bool = True
    then: str = ""
    silent: bool = False


@st.composite
def events(draw: st.DrawFn) -> Event:
    who = draw(st.sampled_from(PLAYERS))
    circle = draw(st.none() | st.sets(st.sampled_from(PLAYERS)))
    audience = None if circle is None else frozenset(circle | {who})
    then = draw(st.sampled_from(["", "", "distil", "day", "restart", "leave"]))
    return Event(who, audience, draw(st.booleans()), then)


@dataclass
class Parrot:
    """A model that sums up by repeating all it reads, and keeps what it was asked."""

    scripted: bool = False
    max_model_len: int = 100_000
    chat: Any = CHATML
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def stream(self, ids: Sequence[int], params: Any, *, salt: str, **rest: Any) -> Any:
        prompt = readable(ids)
        self.asked.append((prompt, salt))
        said = re.findall(r"I keep mark\d+x secret\.", prompt)
        facts = [{"text": text, "importance": 5} for text in said]
        yield RequestOutput(0, json.dumps({"facts": facts, "summary": " ".join(said)}), ())


@dataclass(frozen=True)
class Told:
    """What an audience was told: a prompt whose answer it hears, and its salt."""

    number: int
    audience: Audience
    text: str
    salt: str


async def played(script: list[Event]) -> tuple[list[Told], list[tuple[str, str]]]:
    """Play a script with a memory that distils as told; every line carries a mark."""
    config = memory_settings(tokens=4000, facts=32, lines=8, distil_prompt_tokens=10_000)
    parrot, clock, told = Parrot(), Clock(), list[Told]()
    book = Book(None, config)
    scribe = Scribe(cast(AsyncEngine, parrot), config, 2)
    memories = Memories(book, HashingVectors(), config, scribe, clock)
    engine = RecordingEngine(max_model_len=100_000)
    talk = dialogue(engine, settings=SMALL)
    here = set(PLAYERS)
    try:
        for number, event in enumerate(script):
            here |= {event.who, *(event.audience or ())}
            talk.present = frozenset(here)
            talk.sources = (MemorySource(memories, Place("inn", "inn", "mira")),)
            text = f"I keep mark{number}x secret."
            said = replace(line(text, event.who, audience=event.audience), ts=clock.ms)
            request = TurnRequest(f"t{number}", said, event.audience)
            if event.answered and not event.silent:
                search = talk.sources[0].prepare(said, event.audience, urgent=False)
                assert search is not None
                await asyncio.wait([search])
                talk.begin(request, print)
                prompt = engine.submitted[-1]
                told.append(Told(number, event.audience, prompt.text, prompt.salt))
                talk.commit(request, f"So mark{number}x it is.", 1, "completed", clock.ms)
            elif not event.silent:
                talk.hear(said)
            if event.then == "day":
                clock.now += DAY_S
            if event.then == "leave":
                here.discard(event.who)
            if event.then in ("distil", "day", "restart"):
                while await memories.distil():
                    pass
            if event.then == "restart":  # the process ends: only the book is left
                await memories.written()
                memories._recollections.clear()
                talk = dialogue(engine, settings=SMALL)
    finally:
        await memories.close()
    return told, parrot.asked


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(events(), min_size=1, max_size=14))
def test_no_word_of_a_whisper_reaches_who_did_not_hear_it(script: list[Event]) -> None:
    told, asked = asyncio.run(played(script))
    for prompt in told:
        for mark in map(int, _MARK.findall(prompt.text)):
            heard_by = script[mark].audience
            assert heard_by is None or (prompt.audience or {"everybody"}) <= heard_by
    circles: dict[str, set[tuple[str, Audience]]] = {}
    for text, salt in asked:
        marks = [script[int(mark)] for mark in _MARK.findall(text)]
        # What is summed up together was heard by one circle alone, and is cached for it alone.
        assert len({event.audience for event in marks}) <= 1
        circles.setdefault(salt, set()).update((event.who, event.audience) for event in marks)
    assert all(len(who) == 1 for who in circles.values())
    assert not circles.keys() & {prompt.salt for prompt in told}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(events(), min_size=1, max_size=12))
def test_what_others_whisper_changes_nothing_in_ones_prompts(script: list[Event]) -> None:
    """Leaving out every line that Anna cannot know gives her the same prompts, token by token."""

    def hers(audience: Audience) -> bool:
        return audience is None or "anna" in audience

    without = [replace(event, silent=not hers(event.audience)) for event in script]
    all_told, _ = asyncio.run(played(script))
    her_told, _ = asyncio.run(played(without))
    assert [told for told in all_told if hers(told.audience)] == her_told


def test_what_was_said_in_public_is_remembered_for_those_who_were_there() -> None:
    """The property above would hold of a memory that remembers nothing: this one does not."""
    circle = frozenset({"anna", "bob"})
    script = [
        Event("anna", None, then="distil"),
        Event("anna", circle, then="restart"),
        Event("anna", None),
        Event("anna", circle),
        Event("bob", circle),
        Event("carl", None),
    ]
    told, asked = asyncio.run(played(script))
    marks = [set(_MARK.findall(prompt.text)) for prompt in told]
    assert marks[2] >= {"0"} and "1" not in marks[2]
    assert marks[3] >= {"0", "1"}
    assert marks[4] >= {"0", "1"}
    assert "1" not in marks[5]
    assert len(asked) >= 2
