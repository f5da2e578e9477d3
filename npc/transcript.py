"""What was said to one NPC and by it, and who may know.

A line was heard by an audience: the whole scene (None) or a circle of players. It may become part
of what others hear only if all of them heard it. What one audience says changes nothing for
another, not even which lines are remembered.
"""

import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from typing import Literal

Audience = frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Line:
    """Something that was said.

    Attributes:
        id: of the message, or of the turn for an NPC's words.
        kind: by a player, by an NPC, or observed: spoken by the game itself.
        who: id of the speaker.
        name: of the speaker, for people and prompts.
        npc: the NPC it was said to, or who said it.
        text: the words.
        ts: wall clock, ms.
        audience: players who heard it; None: everybody in the scene.
        heard: of an NPC's words, how many chunks of the turn these are.
        status: of an NPC's words, how the turn ended.
    """

    id: str
    kind: Literal["player", "npc", "observed"]
    who: str
    name: str
    npc: str | None
    text: str
    ts: int
    audience: Audience = None
    heard: int | None = None
    status: str | None = None


class Entry:
    """A line in its place.

    Attributes:
        line: what was said; replaced when less of it turns out to have been heard.
        serial: order in which it was taken in, which is the order of pages.
        place: order in which prompts tell it: an answer follows the line it answers, even if
            something else was heard meanwhile.
    """

    __slots__ = ("line", "place", "serial")

    def __init__(self, line: Line, serial: int, place: tuple[int, int]) -> None:
        self.line = line
        self.serial = serial
        self.place = place


class Transcript:
    """The lines of one NPC in one running scene."""

    def __init__(self, lines_per_audience: int, circles: int) -> None:
        """Keeps so many lines of each audience, and so many audiences beside the whole scene, those
        that spoke last.
        """
        self._most = lines_per_audience
        self._circles = circles
        self._entries: OrderedDict[Audience, deque[Entry]] = OrderedDict()
        self._by_id: dict[str, Entry] = {}
        self._serials = itertools.count()

    def add(self, line: Line, answers: str | None = None) -> None:
        """Take a line in; one with a known id is taken once.

        Args:
            answers: id of the line that it answers.
        """
        if line.id in self._by_id:
            return
        serial = next(self._serials)
        cue = self._by_id.get(answers) if answers else None
        entry = Entry(line, serial, (cue.serial, 1) if cue else (serial, 0))
        entries = self._entries.setdefault(line.audience, deque())
        self._entries.move_to_end(line.audience)
        entries.append(entry)
        self._by_id[line.id] = entry
        if len(entries) > self._most:
            del self._by_id[entries.popleft().line.id]
        circles = [audience for audience in self._entries if audience is not None]
        if len(circles) > self._circles:
            for forgotten in self._entries.pop(circles[0]):
                del self._by_id[forgotten.line.id]

    def amend(self, line_id: str, text: str, heard: int) -> Line | None:
        """Change how much of a line was heard, and return it. One that is forgotten already stays
        so.
        """
        entry = self._by_id.get(line_id)
        if entry is None:
            return None
        entry.line = replace(entry.line, text=text, heard=heard)
        return entry.line

    def told_to(self, audience: Audience) -> list[Entry]:
        """What a prompt may hold whose answer `audience` hears, in the order of places."""
        return self._collect(
            [
                heard_by
                for heard_by in self._entries
                if heard_by is None or (audience is not None and audience <= heard_by)
            ],
            by_place=True,
        )

    def seen_by(self, player: str) -> list[Line]:
        """What a player may read, in the order it was said."""
        audiences = [a for a in self._entries if a is None or player in a]
        return [entry.line for entry in self._collect(audiences, by_place=False)]

    def _collect(self, audiences: list[Audience], *, by_place: bool) -> list[Entry]:
        found = [e for a in audiences for e in self._entries[a] if e.line.text]
        return sorted(found, key=lambda e: (e.place, e.serial) if by_place else (e.serial,))
