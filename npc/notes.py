"""What an NPC has in mind at a line: notes from lore, memory, quests and whoever else has some.

A note is one short text right before the newest line, where it costs no cache (see `npc.prompt`).
A source is asked for its notes when a turn begins, and is told what is said.

Whoever hears the answer may learn what is in a note. So a source gives only what may be known to
the whole audience of the turn: for a whisper its circle, else everybody in the scene.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npc.persona import Persona
from npc.transcript import Audience, Line
from scenes.conditions import WorldState


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to have in mind.

    Attributes:
        text: plain words; the prompt tells them as "(Mira knows: text)".
        verb: what the NPC does with it, in place of "knows"; never words of a player or a model.
        priority: if a source has more than its tokens, higher ones are told, and of equal ones the
            later one.
    """

    text: str
    verb: str = "knows"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """A turn that is about to begin.

    Attributes:
        turn: its id.
        persona: the NPC.
        line: what it answers.
        audience: players who will hear the answer; None: everybody in the scene.
        told: the earlier lines that the prompt tells, oldest first.
        present: players who are in the scene, the ones outside the audience included.
        state: of the world.
    """

    turn: str
    persona: Persona
    line: Line
    audience: Audience
    told: Sequence[Line]
    present: frozenset[str]
    state: WorldState


@dataclass(frozen=True, slots=True)
class Place:
    """For whom a source is wanted.

    Attributes:
        scene: id of the pack.
        stream: id of the running scene.
        npc: id of the NPC.
    """

    scene: str
    stream: str
    npc: str


class NoteSource:
    """Somebody with notes for one NPC of one running scene; as it stands, one that has none and
    listens to nothing. All methods are called in the event loop and must return at once.

    Attributes:
        tokens: most tokens of its notes in one turn; 0 if it has none.
    """

    tokens: int = 0

    def prepare(
        self, line: Line, audience: Audience, *, urgent: bool
    ) -> asyncio.Future[None] | None:
        """A line has come that will be answered: begin to look for its notes.

        Args:
            urgent: the NPC's players must not wait for anything that takes longer than a look.

        Returns:
            What ends once the notes are found; None if there is nothing to wait for.
        """
        return None

    def notes(self, moment: Moment) -> Sequence[Note]:
        """What to have in mind, in the order in which it is told."""
        return ()

    def heard(self, line: Line, present: frozenset[str]) -> None:
        """The NPC has heard a line, which it may or may not answer; `present` as in `Moment`."""
        return

    def said(self, line: Line, answers: Line, present: frozenset[str]) -> None:
        """A turn has ended. `line.text` holds the words that count: "" if none do (yet)."""
        return

    def amended(self, line: Line) -> None:
        """More or less of a finished turn was heard than thought: this is its line now."""
        return


#: Makes the source of one NPC in one running scene; None if it has nothing to say to it.
SourceMaker = Callable[[Place], NoteSource | None]


def fitting(notes: Sequence[Note], tokens: int, cost: Callable[[Note], int]) -> list[Note]:
    """The most important notes that fit, in their order. One that does not fit is left out; a less
    important one after it may fit.
    """
    ranked = sorted(enumerate(notes), key=lambda item: (item[1].priority, item[0]), reverse=True)
    kept: list[int] = []
    for number, note in ranked:
        if (needed := cost(note)) <= tokens:
            tokens -= needed
            kept.append(number)
    return [notes[number] for number in sorted(kept)]
