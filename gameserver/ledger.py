"""What a running scene writes down of itself, so that another process can go on with it.

Everything that was accepted is here before anybody is told so: who is in the scene, lines that wait
for an answer, turns that are being spoken, and what is known of those that ended. What was said is
written by the NPCs' transcripts, and what happened by the stream.
"""

import sys
import time
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from gameserver.answer import Cue, Spoken
from gameserver.messages import Role
from gameserver.overheard import Overheard
from gameserver.stores.journal import Book, Shelf
from gameserver.streams import empty_log
from gameserver.turn import Turn
from npc.dialogue import Line
from npc.feelings import Feelings
from npc.settings import FeelingSettings
from npc.story import Story, without
from npc.transcript import Transcript

if TYPE_CHECKING:
    from gameserver.session import Session


class Seat(msgspec.Struct, frozen=True, array_like=True):
    """A session that is in the scene."""

    player: str
    name: str
    role: Role
    interest: tuple[str, ...] | None = None


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A line that is answered, or waits for it.

    Attributes:
        order: rises from line to line.
        npc: who is to answer.
        session: id of the speaker's.
        listeners: ids of the sessions that hear a whisper.
    """

    order: int
    npc: str
    line: Line
    session: str
    listeners: tuple[str, ...] | None
    prefill: str
    greeting: str


class Speaking(msgspec.Struct, frozen=True, array_like=True):
    """A turn that has begun: its id, the line it answers, and its words a moment ago."""

    turn: str
    line: str
    chunks: list[str]


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A turn that has ended."""

    order: int
    npc: str
    spoken: Spoken


#: Who forgets one player forgets nobody else, whatever limits the scene will run with.
_ALL = sys.maxsize
#: Under such keys lies what is to be told outside.
OUTBOX = "out/"
Record = TypeVar("Record")
State = Literal["present", "away"]
_STATES: dict[bytes, State] = {b"present": "present", b"away": "away"}
_pack = msgspec.msgpack.encode


class Ledger:
    """The book of one scene, in the words of scenes.

    Attributes:
        book: where it is written.
    """

    def __init__(self, book: Book, checkpoint_ms: int) -> None:
        """`checkpoint_ms` is how old the words of a turn may be that a crash leaves."""
        self.book = book
        self._checkpoint_s = checkpoint_ms / 1000
        self._written_at: dict[str, float] = {}  # words of a turn, by its id
        self._feelings: dict[str, int] = {}  # the revision that was written last
        self._story = b""
        self._order = time.time_ns()  # above all that earlier owners gave

    # Who is here

    def sit(self, session: "Session", role: Role, interest: tuple[str, ...] | None) -> None:
        """A session is in the scene."""
        seat = Seat(session.player, session.name, role, interest)
        self.book.put(f"seat/{session.id}", _pack(seat))

    def stand_up(self, session_id: str) -> None:
        """A session is not in the scene any more."""
        self.book.drop(f"seat/{session_id}")

    def announced(self, player: str, state: str | None) -> None:
        """What the others know of a player; None: that it is not here."""
        self._set(f"here/{player}", None if state is None else state.encode())

    def addressed(self, player: str, npc: str | None) -> None:
        """Whom a player has spoken to last."""
        self._set(f"addressed/{player}", None if npc is None else npc.encode())

    # Lines and turns

    def accept(self, npc: str, cue: Cue) -> None:
        """A line will be answered."""
        listeners = None
        if cue.listeners is not None:
            listeners = tuple(sorted(session.id for session in cue.listeners))
        waiting = Waiting(
            self._next(), npc, cue.line, cue.session.id, listeners, cue.prefill, cue.greeting
        )
        self.book.put(f"line/{cue.line.id}", _pack(waiting))

    def drop(self, cue: Cue) -> None:
        """A line will not be answered any more, or was."""
        self.book.drop(f"line/{cue.line.id}")

    def begin_unit(self) -> None:
        """What is written from now on comes to be together or not at all."""
        self.book.journal.begin()

    def begin(self, turn: Turn, cue: Cue) -> None:
        """A turn has started."""
        self.words(turn, cue, at_once=True)

    def words(self, turn: Turn, cue: Cue, *, at_once: bool = False) -> None:
        """A turn has got words; they are written now and then."""
        now = time.monotonic()
        if at_once or now - self._written_at.get(turn.id, now) >= self._checkpoint_s:
            speaking = Speaking(turn.id, cue.line.id, turn.chunks)
            self.book.put(f"turn/{turn.npc}", _pack(speaking))
            self._written_at[turn.id] = now

    def end(self, turn: Turn, cue: Cue, spoken: Spoken) -> None:
        """A turn has ended, and its line is answered."""
        self._written_at.pop(turn.id, None)
        self.book.drop(f"turn/{turn.npc}")
        self.drop(cue)
        self.book.put(f"spoken/{turn.id}", _pack(Finished(self._next(), turn.npc, spoken)))

    def let_go(self, turn_id: str) -> None:
        """A turn has ended so long ago that nobody asks for it."""
        self.book.drop(f"spoken/{turn_id}")

    # How things are

    def state(self) -> Shelf:
        """Where the world state is kept, by entity and key."""
        return self.book.shelf("state/")

    def outbox(self) -> Shelf:
        """Where is kept what is to be told outside (MQTT) and was not yet."""
        return self.book.shelf(OUTBOX)

    def came(self) -> Shelf:
        """Where is kept which messages from outside (MQTT) have come in lately."""
        return self.book.shelf("came/")

    # What an NPC has in mind

    def remembered(self) -> set[str]:
        """NPCs whose transcripts or feelings are here and were not read yet."""
        kept = [*self.book.names("said/"), *self.book.names("feelings/")]
        return {key.split("/")[0] for key in kept}

    def overheard(self) -> Shelf:
        """Where is kept what all of its NPCs have heard."""
        return self.book.shelf("overheard/")

    def transcript(self, npc: str) -> Shelf:
        """Where its transcript is kept."""
        return self.book.shelf(f"said/{npc}/")

    def feel(self, npc: str, feelings: Feelings) -> None:
        """What it feels by now."""
        if self._feelings.get(npc, 0) != feelings.revision:
            self._feelings[npc] = feelings.revision
            self.book.put(f"feelings/{npc}/", msgspec.msgpack.encode(feelings.snapshot()))

    def felt(self, npc: str) -> Any:
        """What it felt when the scene was claimed; None if nothing is known. Once."""
        found = self.book.take(f"feelings/{npc}/").get("")
        return None if found is None else msgspec.msgpack.decode(found)

    def tell_story(self, story: Story) -> None:
        """Where the quests are by now, and what games have told of their players."""
        told = msgspec.msgpack.encode(story.snapshot(), order="deterministic")
        if self._story != told:
            self._story = told
            self.book.put("story", told)

    def told_story(self) -> Any:
        """What was told of the story when the scene was claimed; None if nothing is known. Once."""
        found = self.book.take("story").get("")
        return None if found is None else msgspec.msgpack.decode(found)

    def forget(self, player: str, npc: str | None) -> None:
        """Forget what a player has said and means to all NPCs or one, in a scene that does not run;
        of its events nothing is left but how many there were.
        """
        for name in self.remembered():
            if npc in (None, name):
                shelf = self.transcript(name)
                Transcript(_ALL, _ALL, shelf).forget(player)
                if (felt := self.felt(name)) is not None:
                    feelings = Feelings(FeelingSettings(players=_ALL))
                    feelings.restore(felt)
                    feelings.forget(player)
                    self.feel(name, feelings)
        dropped = set[str]()
        for name, waiting in self._all("line/", Waiting).items():
            if waiting.line.who == player and npc in (None, waiting.npc):
                self.book.drop(f"line/{name}")
                dropped.add(name)
        for name, finished in self._all("spoken/", Finished).items():
            if finished.spoken.player == player and npc in (None, finished.npc):
                self.let_go(name)
        if npc is None:
            Overheard(_ALL, self.overheard()).forget(player)
            for name in self.book.names(f"state/{player}/"):
                self.book.drop(f"state/{player}/{name}")
            self.book.drop(f"addressed/{player}")
            if (told := self.told_story()) is not None:
                self.book.put("story", _pack(without(told, player), order="deterministic"))
        for name, turn in self._all("turn/", Speaking).items():
            if turn.line in dropped:
                self.book.drop(f"turn/{name}")
        empty_log(self.book, self.book.name.removeprefix("scene."))

    # What was here when the scene was claimed; each once

    def seats(self) -> dict[str, Seat]:
        """By session id."""
        return self._all("seat/", Seat)

    def states(self) -> dict[str, State]:
        """What others knew of the players."""
        found = self.book.take("here/")
        return {player: _STATES[state] for player, state in found.items() if state in _STATES}

    def last_addressed(self) -> dict[str, str]:
        """Whom each player had spoken to last."""
        return {player: npc.decode() for player, npc in self.book.take("addressed/").items()}

    def lines(self) -> list[Waiting]:
        """Lines that wait for an answer, in order."""
        return sorted(self._all("line/", Waiting).values(), key=lambda line: line.order)

    def turns(self) -> dict[str, Speaking]:
        """Turns that were being spoken, by NPC."""
        return self._all("turn/", Speaking)

    def finished(self) -> dict[str, Finished]:
        """Turns that had ended, by id, in order."""
        found = self._all("spoken/", Finished)
        return dict(sorted(found.items(), key=lambda item: item[1].order))

    def _all(self, prefix: str, kind: type[Record]) -> dict[str, Record]:
        found = self.book.take(prefix)
        return {key: msgspec.msgpack.decode(value, type=kind) for key, value in found.items()}

    def _set(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.book.drop(key)
        else:
            self.book.put(key, value)

    def _next(self) -> int:
        self._order += 1
        return self._order
