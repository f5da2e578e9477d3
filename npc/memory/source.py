"""One NPC's memory in a running scene, as a source of notes."""

import asyncio
from collections.abc import Collection

from npc.memory.book import Amendment
from npc.memory.memories import Memories
from npc.memory.records import Memory, Owner, Recollection, Spoken
from npc.notes import Moment, Note, NoteSource, Place
from npc.prompt import speaker
from npc.transcript import Audience, Line

_DAY_MS = 86_400_000
#: What is told before what, if not everything fits: facts that the line asks for, what the talk was
#: about, how it ended, and other facts.
_ASKED, _SUMMARY, _LATEST = 3_000, 2_000, 1_000
#: Relevance of a fact that the line asks for.
_RELEVANT = 0.3
#: Characters of a line that is told again; its beginning says what it was about.
_LINE = 160


class MemorySource(NoteSource):
    """Tells an NPC what it remembers, and remembers what it hears and says.

    Attributes:
        tokens: see `NoteSource`.
    """

    def __init__(self, memories: Memories, place: Place) -> None:
        self.tokens = memories.settings.tokens
        self._memories = memories
        self._place = place
        self._late: set[str] = set()  # lines that are still being looked up

    def prepare(
        self, line: Line, audience: Audience, *, urgent: bool
    ) -> asyncio.Future[None] | None:
        """See `NoteSource`."""
        stream, npc = self._place.stream, self._place.npc
        first = self._memories.recollected(stream, npc, line.who, audience) is None
        # Who must not wait begins with what needs no vector; what a line brings to mind is then
        # there for the next one.
        text = "" if urgent and first else line.text
        search = self._memories.recall(stream, npc, line.who, audience, text)
        self._late.add(line.id)
        search.add_done_callback(lambda _: self._late.discard(line.id))
        return None if urgent and not first else search

    def notes(self, moment: Moment) -> list[Note]:
        """See `NoteSource`."""
        if moment.line.id in self._late:
            self._memories.count_late()
        place, line = self._place, moment.line
        found = self._memories.recollected(place.stream, place.npc, line.who, moment.audience)
        if found is None:
            return []
        told = {line.id for line in moment.told} | {line.id}
        return remembered(found, told, line.ts)

    def heard(self, line: Line, present: frozenset[str]) -> None:
        """See `NoteSource`."""
        if line.text and (line.kind == "player" or line.who in present):
            self._take(line, line.who, present, own=False)

    def said(self, line: Line, answers: Line, present: frozenset[str]) -> None:
        """See `NoteSource`."""
        if answers.text and answers.who:  # a greeting says nothing of anybody, nor does news
            self._take(line, answers.who, present, own=True)

    def amended(self, line: Line) -> None:
        """See `NoteSource`."""
        place = self._place
        self._memories.take(Amendment(place.stream, place.npc, line.id, line.text))

    def _take(self, line: Line, player: str, present: frozenset[str], *, own: bool) -> None:
        owner = Owner(self._place.stream, self._place.npc, player)
        hearers = present | {player} if line.audience is None else line.audience
        self._memories.take(
            Spoken(line.id, owner, line.audience, own, line.name, line.text, line.ts, hearers)
        )


def remembered(found: Recollection, told: Collection[str], now: int) -> list[Note]:
    """The notes of a recollection: summary, facts from old to new, and the lines of `told` that
    the prompt does not tell anyway.

    Args:
        told: ids of lines that the prompt tells.
        now: ms.
    """
    latest = [line for line in found.lines if line.id not in told]
    again = " ".join(line.text for line in latest)
    summaries = [m for m in found.memories if m.kind == "summary"]
    covered = " ".join([again, *(m.text for m in summaries)])
    ranked = [m for m in found.memories if m.kind == "fact" and m.text not in covered]
    rank = {
        m.id: len(ranked) - at + (_ASKED if m.relevance >= _RELEVANT else 0)
        for at, m in enumerate(ranked)
    }
    notes = [Note(f"about {speaker(m.name)}: {m.text}", "remembers", _SUMMARY) for m in summaries]
    notes += [
        Note(f"{speaker(m.name)} said{_ago(m, now)}: {m.text}", "remembers", rank[m.id])
        for m in sorted(ranked, key=lambda m: m.ts)
    ]
    notes += [
        Note(f"{speaker(line.name)} said: {line.text[:_LINE]}", "remembers", _LATEST)
        for line in latest
    ]
    return notes


def _ago(memory: Memory, now: int) -> str:
    days = (now - memory.ts) // _DAY_MS
    if days < 1:
        return ""
    return " yesterday" if days == 1 else f" {days} days ago"
