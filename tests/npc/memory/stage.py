"""Talks, books and a clock for tests of memory."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from npc.dialogue import Dialogue, TurnRequest
from npc.memory.book import Book
from npc.memory.memories import Memories
from npc.memory.records import Draft, Owner, Spoken, Talk
from npc.memory.scribe import Scribe
from npc.memory.source import MemorySource
from npc.memory.vectors import Embedder, HashingVectors
from npc.notes import Place
from npc.settings import MemorySettings
from npc.transcript import Audience
from tests.npc.stage import RecordingEngine, dialogue, line

DAY_S = 86_400
START_S = 1_700_000_000
ANNA = Owner("inn", "mira", "anna")
#: Whatever is said is made into facts at once.
EAGER: dict[str, Any] = {
    "distil_lines": 2,
    "distil_quiet_s": 0.0,
    "distil_pause_s": 3600.0,
    "tokens": 1000,  # of bytes: the vocabulary of these tests
}


def memory_settings(**changes: Any) -> MemorySettings:
    """Settings under which everything is distilled at once, changed as asked."""
    return msgspec.convert({**EAGER, **changes}, MemorySettings)


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = float(START_S)

    def __call__(self) -> float:
        return self.now

    @property
    def ms(self) -> int:
        return int(self.now * 1000)


def spoken(
    text: str,
    owner: Owner = ANNA,
    *,
    id: str | None = None,
    circle: Audience = None,
    own: bool = False,
    ts: int = START_S * 1000,
    present: Sequence[str] = (),
) -> Spoken:
    """A line whose id is its text unless given."""
    hearers = frozenset([owner.player, *present]) if circle is None else circle
    name = owner.npc.title() if own else owner.player.title()
    return Spoken(id or text, owner, circle, own, name, text, ts, hearers)


def known(
    book: Book,
    *texts: str,
    owner: Owner = ANNA,
    circle: Audience = None,
    present: Sequence[str] = (),
    importance: float = 0.5,
    ts: int = START_S * 1000,
    vectors: Embedder | None = None,
) -> None:
    """Put facts into a book."""
    said = spoken(texts[0], owner, id=f"{texts[0]} {circle}", circle=circle, ts=ts)
    book.write([said])
    hearers = frozenset([owner.player, *present]) if circle is None else circle
    embedder = vectors or HashingVectors()
    rows = embedder.encode(texts)
    facts = [
        (Draft(text, importance, ts, hearers), row.tobytes())
        for text, row in zip(texts, rows, strict=True)
    ]
    assert book.keep(Talk(owner, circle, (said,), ""), facts, None, embedder.name)


@asynccontextmanager
async def remembering(
    path: Path | None = None,
    clock: Clock | None = None,
    *,
    embedder: Embedder | None = None,
    **changes: Any,
) -> AsyncIterator[Memories]:
    """Memories that do nothing in the background by themselves."""
    settings = memory_settings(**changes)
    memories = Memories(
        Book(path, settings),
        embedder or HashingVectors(),
        settings,
        Scribe(None, settings, 2),
        clock or Clock(),
    )
    try:
        yield memories
    finally:
        await memories.close()


def with_memory(
    memories: Memories,
    engine: RecordingEngine,
    *,
    stream: str = "inn",
    npc: str = "mira",
    present: Sequence[str] = ("anna",),
    **settings: Any,
) -> Dialogue:
    """A dialogue that remembers."""
    talk = dialogue(engine, **settings)
    talk.sources = (MemorySource(memories, Place("inn", stream, npc)),)
    talk.present = frozenset(present)
    return talk


async def ask(
    talk: Dialogue,
    text: str,
    who: str = "anna",
    *,
    audience: Audience = None,
    reply: str = "Aye.",
    clock: Clock | None = None,
) -> str:
    """Say a line once what it brings to mind is found, and get a reply; the prompt as text."""
    said = replace(line(text, who, audience=audience), ts=(clock or Clock()).ms)
    request = TurnRequest(f"turn of {text}", said, audience)
    for source in talk.sources:
        search = source.prepare(said, audience, urgent=False)
        if search is not None:
            await asyncio.wait([search])
    talk.begin(request, print)
    talk.commit(request, reply, 1, "completed", said.ts)
    engine: Any = talk._engine
    prompt: str = engine.submitted[-1].text
    return prompt
