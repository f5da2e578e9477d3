"""What was said to one NPC and by it, and who may know.

A line was heard by an audience: the whole scene (None) or a circle of players. It may become part
of what others hear only if all of them heard it. What one audience says changes nothing for
another, not even which lines are remembered.
"""

import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from npc.shelf import NoShelf, Shelf

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

    def __init__(self, lines_per_audience: int, circles: int, shelf: Shelf | None = None) -> None:
        """Keeps so many lines of each audience, and so many audiences beside the whole scene, those
        that spoke last. On a shelf they outlive the process; what is there already is remembered.
        """
        self._most = lines_per_audience
        self._circles = circles
        self._shelf = shelf or NoShelf()
        self._entries: OrderedDict[Audience, deque[Entry]] = OrderedDict()
        self._by_id: dict[str, Entry] = {}
        serial = -1
        for key, value in self._shelf.take().items():
            line, place = msgspec.msgpack.decode(value, type=tuple[Line, tuple[int, int]])
            serial = int(key)
            self._take_in(Entry(line, serial, place))
        self._serials = itertools.count(serial + 1)

    def __contains__(self, line_id: str) -> bool:
        return line_id in self._by_id

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
        self._keep(entry)
        self._take_in(entry)

    def amend(self, line_id: str, text: str, heard: int) -> Line | None:
        """Change how much of a line was heard, and return it. One that is forgotten already stays
        so.
        """
        entry = self._by_id.get(line_id)
        if entry is None:
            return None
        entry.line = replace(entry.line, text=text, heard=heard)
        self._keep(entry)
        return entry.line

    def forget(self, player: str) -> None:
        """Drop the lines of a player, and what was answered to them."""
        for audience, entries in list(self._entries.items()):
            theirs = {e.serial for e in entries if e.line.kind != "npc" and e.line.who == player}
            for entry in [entry for entry in entries if entry.place[0] in theirs]:
                entries.remove(entry)
                self._forget(entry)
            if not entries:
                del self._entries[audience]

    def newest(self, most: int) -> list[Line]:
        """The lines taken in last, of all audiences: for who may know everything."""
        return [entry.line for entry in self._collect(list(self._entries), by_place=False)][-most:]

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

    def _take_in(self, entry: Entry) -> None:
        audience = entry.line.audience
        entries = self._entries.setdefault(audience, deque())
        self._entries.move_to_end(audience)
        entries.append(entry)
        self._by_id[entry.line.id] = entry
        if len(entries) > self._most:
            self._forget(entries.popleft())
        circles = [circle for circle in self._entries if circle is not None]
        if len(circles) > self._circles:
            for forgotten in self._entries.pop(circles[0]):
                self._forget(forgotten)

    def _keep(self, entry: Entry) -> None:
        self._shelf.put(_key(entry), msgspec.msgpack.encode((entry.line, entry.place)))

    def _forget(self, entry: Entry) -> None:
        del self._by_id[entry.line.id]
        self._shelf.drop(_key(entry))

    def _collect(self, audiences: list[Audience], *, by_place: bool) -> list[Entry]:
        found = [e for a in audiences for e in self._entries[a] if e.line.text]
        return sorted(found, key=lambda e: (e.place, e.serial) if by_place else (e.serial,))


def _key(entry: Entry) -> str:
    return f"{entry.serial:012}"  # keys are read in their order
