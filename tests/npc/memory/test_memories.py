"""Memory never holds up the event loop or a turn, survives restarts, and ends cleanly."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from engine.errors import ModelError
from npc.dialogue import TurnRequest
from npc.memory.memories import Memories
from npc.memory.opening import MemoryFileError
from npc.memory.records import Memory, Recollection
from npc.memory.source import remembered
from npc.memory.vectors import HashingVectors, Vectors, at_hand
from npc.settings import MemorySettings
from tests.npc.memory.stage import (
    ANNA,
    DAY_S,
    START_S,
    Clock,
    ask,
    memory_settings,
    remembering,
    spoken,
    with_memory,
)
from tests.npc.stage import RecordingEngine, line


async def distilled(memories: Memories) -> None:
    while await memories.distil():
        pass


async def test_an_npc_remembers_over_a_restart_and_says_when(tmp_path: Path) -> None:
    path, clock = tmp_path / "memory.sqlite3", Clock()
    async with remembering(path, clock) as memories:
        talk = with_memory(memories, RecordingEngine())
        await ask(talk, "My horse is called Biscuit.", reply="A fine name.")
        await distilled(memories)
    clock.now += 2 * DAY_S
    async with remembering(path, clock) as memories:
        talk = with_memory(memories, RecordingEngine())
        prompt = await ask(talk, "What is my horse called?", clock=clock)
    assert prompt.startswith("<user>(Mira remembers: about Anna: My horse is called Biscuit.)")
    assert "(Mira remembers: Mira said: A fine name.)" in prompt
    assert prompt.endswith("Anna: What is my horse called?</user><npc>")


async def test_what_the_prompt_tells_anyway_is_not_remembered_beside_it() -> None:
    async with remembering(distil_quiet_s=3600.0) as memories:
        talk = with_memory(memories, RecordingEngine())
        await ask(talk, "I lost a ring.")
        assert "remembers" not in await ask(talk, "Did you find it?")
        # A line that fell out of the talk comes back as a note.
        fresh = with_memory(memories, RecordingEngine())
        assert "(Mira remembers: Anna said: I lost a ring.)" in await ask(fresh, "Well?")


async def test_only_what_was_heard_is_remembered_and_later_news_count() -> None:
    async with remembering(distil_quiet_s=3600.0) as memories:
        talk = with_memory(memories, RecordingEngine())
        said = line("Who did it?")
        request = TurnRequest("t1", said)
        talk.begin(request, print)
        talk.commit(request, "The butler did", 3, "interrupted", 1)
        talk.amend("t1", "The", 1)
        await memories.written()
        exported = await memories.export("anna")
        lines = exported["lines"]
        assert isinstance(lines, list)
        assert [found["text"] for found in lines] == ["Who did it?", "The"]


async def test_a_greeting_and_a_line_of_nobody_present_are_not_kept() -> None:
    async with remembering() as memories:
        talk = with_memory(memories, RecordingEngine())
        talk.commit(TurnRequest("t0", line("", id="m0")), "Welcome in.", 1, "completed", 1)
        talk.hear(line("Thunder.", "sky", kind="observed"))
        talk.hear(line("I sing.", "anna", kind="observed"))
        await memories.written()
        (known,) = await memories.known()
        assert (known.player, known.lines) == ("anna", 1)


class Slow(HashingVectors):
    """Vectors that come when they are let."""

    name = "slow"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.made: list[str] = []

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.gate.wait(10)
        self.made += texts
        return super().encode(texts)


async def many_facts(memories: Memories, slow: Slow) -> None:
    """More facts than come up at once, so that a line needs a vector."""
    slow.gate.set()
    talk = with_memory(memories, RecordingEngine())
    for n in range(9):
        await ask(talk, f"I own thing number {n}.")
    await ask(talk, "My name is Tomas and I promise to stay.")
    await distilled(memories)
    slow.gate.clear()


async def test_a_turn_does_not_wait_for_vectors_and_uses_what_is_strong() -> None:
    slow = Slow()
    async with remembering(embedder=slow, facts=1, lines=0) as memories:
        await many_facts(memories, slow)
        engine = RecordingEngine()
        talk = with_memory(memories, engine)
        (source,) = talk.sources
        said = line("thing number 3?")
        search = source.prepare(said, None, urgent=False)
        assert search is not None
        await asyncio.wait([search], timeout=0.3)
        assert not search.done()
        talk.begin(TurnRequest("t1", said), print)
        assert "My name is Tomas" in engine.submitted[-1].text
        assert memories.gauges()["memory_recalls_late"] == 1
        slow.gate.set()
        await search
        talk.begin(TurnRequest("t2", line("thing number 3??")), print)
        assert "I own thing number 3." in engine.submitted[-1].text


async def test_who_is_urgent_waits_for_the_first_look_only_and_for_no_vector() -> None:
    slow = Slow()
    async with remembering(embedder=slow, facts=1) as memories:
        await many_facts(memories, slow)
        memories._recollections.clear()
        talk = with_memory(memories, RecordingEngine())
        (source,) = talk.sources
        first = source.prepare(line("One."), None, urgent=True)
        assert first is not None
        await asyncio.wait_for(first, 5)
        slow.gate.set()
        assert source.prepare(line("Two."), None, urgent=True) is None
        assert source.prepare(line("Three."), None, urgent=False) is not None


async def test_few_facts_need_no_vector_at_all() -> None:
    slow = Slow()
    slow.gate.set()
    async with remembering(embedder=slow, facts=4) as memories:
        talk = with_memory(memories, RecordingEngine())
        await ask(talk, "My name is Tomas.")
        await distilled(memories)
        before = len(slow.made)
        assert "Tomas" in await ask(with_memory(memories, RecordingEngine()), "Who am I?")
        assert len(slow.made) == before


async def test_memory_takes_no_more_than_its_tokens() -> None:
    async with remembering(tokens=120, lines=0) as memories:
        talk = with_memory(memories, RecordingEngine())
        for n in range(9):
            await ask(talk, f"I own thing number {n}, and it is very heavy.")
        await distilled(memories)
        prompt = await ask(with_memory(memories, RecordingEngine()), "thing?")
        notes = prompt[: prompt.index("Anna: thing?")]
        assert 0 < len(notes.replace("<user>", "")) <= 120
    async with remembering(tokens=0) as memories:
        talk = with_memory(memories, RecordingEngine())
        assert "remembers" not in await ask(talk, "I own a thing.")


async def test_changes_that_wait_are_bounded_and_counted() -> None:
    async with remembering(waiting_changes=5) as memories:
        for n in range(9):
            memories.take(spoken(f"line {n}"))
        assert memories.gauges()["memory_lost"] == 4
        await memories.written()
        (known,) = await memories.known()
        assert known.lines == 5


async def test_a_disk_that_fails_is_counted_and_speech_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with remembering() as memories:

        def full(changes: object) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(memories._book, "write", full)
        talk = with_memory(memories, RecordingEngine())
        with capture_logs() as logs:
            await ask(talk, "My secret is elm.")
            await memories.written()
        assert memories.gauges()["memory_lost"] >= 1
        assert "elm" not in str(logs)


async def test_a_look_that_fails_costs_the_memory_and_not_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with remembering() as memories:
        talk = with_memory(memories, RecordingEngine())
        await ask(talk, "My name is Tomas.")

        def broken(*args: object) -> Recollection:
            raise OSError("the disk is gone")

        monkeypatch.setattr(memories._recall, "about", broken)
        fresh = with_memory(memories, RecordingEngine())
        with capture_logs() as logs:
            assert await ask(fresh, "What now?") == "<user>Anna: What now?</user><npc>"
        assert [entry["event"] for entry in logs] == ["nothing could be recalled"]


async def test_nothing_that_was_said_is_logged(tmp_path: Path) -> None:
    with capture_logs() as logs:
        settings = memory_settings(distil_pause_s=0.001, vectors="hashing")
        memories = await Memories.open(tmp_path / "m.sqlite3", settings, data_dir=tmp_path)
        memories.start()
        talk = with_memory(memories, RecordingEngine())
        await ask(talk, "My xylophone is purple.", audience=frozenset({"anna"}))
        while memories.gauges()["memory_facts"] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await memories.forget("anna")
        await memories.close()
    assert "xylophone" not in str(logs) and "anna" not in str(logs)
    assert {"memory opened"} <= {entry["event"] for entry in logs}


async def test_forgetting_holds_against_facts_that_are_being_made() -> None:
    slow = Slow()
    async with remembering(embedder=slow) as memories:
        talk = with_memory(memories, RecordingEngine())
        await ask(talk, "My name is Tomas.")
        making = asyncio.create_task(memories.distil())
        while not memories._scribe.by_rules:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert await memories.forget("anna") > 0
        slow.gate.set()
        await making
        assert await memories.known() == []
        assert "Tomas" not in await ask(with_memory(memories, RecordingEngine()), "Who am I?")


async def test_closing_gives_up_what_is_being_made_and_keeps_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite3"
    settings = memory_settings(distil_pause_s=0.001, vectors="hashing")
    memories = await Memories.open(path, settings, data_dir=tmp_path)
    memories.start()
    started = asyncio.Event()

    async def endless(talk: object) -> None:
        started.set()
        await asyncio.Event().wait()

    memories._scribe.distil = endless  # type: ignore[method-assign,assignment]
    memories.take(spoken("My name is Tomas."))
    await started.wait()
    memories.take(spoken("And I stay."))
    await memories.close()
    await memories.close()
    async with remembering(path) as again:
        assert [known.lines for known in await again.known()] == [2]
        await distilled(again)
        assert [m.text for m in await again.inspect("mira", "anna") if m.kind == "fact"]


async def test_memories_fade_and_get_new_vectors_in_time() -> None:
    clock = Clock()
    async with remembering(clock=clock) as memories:
        talk = with_memory(memories, RecordingEngine())
        await ask(talk, "It rains a lot today.")
        await distilled(memories)
        memories._embedder = Other()
        assert await memories.renew_vectors()
        assert not await memories.renew_vectors()
        clock.now += 60 * DAY_S
        await memories.fade()
        assert all(m.kind == "summary" for m in await memories.inspect("mira", "anna"))
        assert memories.gauges()["memory_faded"] == 1


class Other(HashingVectors):
    name = "other"


async def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    wrong = tmp_path / "memory.sqlite3"
    wrong.write_text("no database, just a long enough text to look at" * 9)
    with pytest.raises(MemoryFileError, match="damaged"):
        await Memories.open(wrong, memory_settings(), data_dir=tmp_path)
    assert not at_hand(tmp_path)
    folder = tmp_path / "models" / "all-MiniLM-L6-v2"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"junk")
    assert at_hand(tmp_path)


def test_notes_say_who_said_what_and_when() -> None:
    now = START_S * 1000
    day = DAY_S * 1000

    def fact(id: int, text: str, days: int, kind: str = "fact") -> Memory:
        return Memory(id, ANNA, None, kind, "An:na (", text, 0.5, now - days * day, frozenset())  # type: ignore[arg-type]

    found = Recollection(
        (
            fact(1, "She seeks a bell.", 3, "summary"),
            fact(2, "I am old.", 0),
            fact(3, "I am tired.", 1),
            fact(4, "I come from afar.", 9),
            fact(5, "seeks a bell", 2),
        ),
        (spoken("Well met."), spoken("Aye.", own=True)),
    )
    notes = remembered(found, ["Aye."], now)
    assert [note.text for note in notes] == [
        "about An na (: She seeks a bell.",
        "An na ( said 9 days ago: I come from afar.",
        "An na ( said yesterday: I am tired.",
        "An na ( said: I am old.",
        "Anna said: Well met.",
    ]
    assert {note.verb for note in notes} == {"remembers"}
    ranked = sorted(notes, key=lambda note: -note.priority)
    last_words = [note.text.split()[-1] for note in ranked]
    assert last_words == ["bell.", "met.", "old.", "tired.", "afar."]


async def test_the_sentence_model_is_taken_if_it_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npc.memory import memories as module

    class Fake(HashingVectors):
        name = "fake"

        def __init__(self, data_dir: Path) -> None:
            if (data_dir / "broken").exists():
                raise ModelError("broken")

    monkeypatch.setattr(module, "SentenceVectors", Fake)
    auto, must = MemorySettings(), MemorySettings(vectors="sentence")
    assert module._embedder(auto, tmp_path).name == HashingVectors.name
    assert module._embedder(must, tmp_path).name == "fake"
    monkeypatch.setattr(module, "at_hand", lambda _: True)
    assert module._embedder(auto, tmp_path).name == "fake"
    (tmp_path / "broken").touch()
    assert module._embedder(auto, tmp_path).name == HashingVectors.name
    with pytest.raises(ModelError):
        module._embedder(must, tmp_path)
    assert np.isfinite(HashingVectors().encode(["x"])).all()
