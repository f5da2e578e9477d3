"""What another process has left of a scene, put together again."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gameserver.answer import Cue, Lost, Spoken
from gameserver.ledger import Ledger, Waiting
from gameserver.streams import Stream
from gameserver.turn import Turn

if TYPE_CHECKING:
    from gameserver.session import Session


@dataclass(frozen=True, slots=True, eq=False)
class _Gone:
    """Somebody whose session is over: all that is left is whose line it was."""

    player: str
    name: str
    id: str = ""
    away: bool = True


class Remains:
    """The contents of a ledger, as objects that a scene can go on with.

    Attributes:
        seats, states: see `Ledger`.
        ended: turns that had ended, by id.
        npcs: those whom any of it concerns.
    """

    def __init__(self, ledger: Ledger, stream: Stream, sessions: Mapping[str, "Session"]) -> None:
        """`sessions` are those that are not over, by id."""
        self._stream = stream
        self._sessions = sessions
        self.seats = ledger.seats()
        self.states = ledger.states()
        self._finished = ledger.finished()
        self._speaking = ledger.turns()
        self._waiting = {waiting.line.id: waiting for waiting in ledger.lines()}
        self._ledger = ledger
        self.ended = {
            ident: self._turn(ident, turn.npc, (stream,), turn.spoken.chunks)
            for ident, turn in self._finished.items()
        }
        self.npcs = sorted(
            {turn.npc for turn in self._finished.values()}
            | set(self._speaking)
            | {waiting.npc for waiting in self._waiting.values()}
        )

    def of(self, npc: str) -> tuple[Sequence[Cue], Mapping[str, Spoken], Lost | None]:
        """What one NPC goes on with: lines that wait, turns that ended, the one that was spoken."""
        finished = {i: turn.spoken for i, turn in self._finished.items() if turn.npc == npc}
        speaking, lost = self._speaking.get(npc), None
        if speaking is not None and speaking.line in self._waiting:
            cue = self._cue(self._waiting.pop(speaking.line))
            turn = self._turn(speaking.turn, npc, cue.streams, speaking.chunks)
            # Nobody has heard a word of it that we know of: its line is still to be answered.
            again = not speaking.chunks and not isinstance(cue.session, _Gone)
            lost = Lost(turn, cue, again)
        cues = [self._cue(waiting) for waiting in self._waiting.values() if waiting.npc == npc]
        for cue in cues:
            if isinstance(cue.session, _Gone):  # lines of those who are gone are dropped
                self._ledger.drop(cue)
        return [cue for cue in cues if not isinstance(cue.session, _Gone)], finished, lost

    def _cue(self, waiting: Waiting) -> Cue:
        line = waiting.line
        session = self._sessions.get(waiting.session)
        streams: tuple[Stream, ...] = (self._stream,)
        listeners = None
        if waiting.listeners is not None:
            found = (self._sessions.get(name) for name in waiting.listeners)
            listeners = frozenset(listener for listener in found if listener is not None)
            streams = tuple(listener.private for listener in listeners)
        return Cue(
            line,
            session or cast("Session", _Gone(line.who, line.name)),
            time.monotonic(),
            streams,
            listeners,
            waiting.prefill,
            waiting.greeting,
        )

    @staticmethod
    def _turn(ident: str, npc: str, streams: tuple[Stream, ...], chunks: Sequence[str]) -> Turn:
        turn = Turn(ident, npc, streams, 0.0)
        turn.recall(chunks)
        return turn
