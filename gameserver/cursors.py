"""Places of one client in lists that everybody shares: in a stream of events, and in a turn."""

from collections.abc import Callable, Iterable

from gameserver.messages import Gap
from gameserver.protocol import Encoded
from gameserver.state.watch import Watch
from gameserver.streams import Stream
from gameserver.turn import Turn


class Feed:
    """A cursor in a stream.

    Attributes:
        s: the last event that was sent.
        interest: message types wanted; None is all.
        snapshot: makes the message that stands in for events which are gone.
        live: the turns being spoken.
        outdated: whether events alone do not show what has changed.
        watch: a cursor in its state, too.
    """

    __slots__ = ("interest", "live", "outdated", "s", "snapshot", "stream", "watch")

    def __init__(
        self,
        stream: Stream,
        s: int,
        snapshot: Callable[[Gap | None], Encoded],
        live: Callable[[], Iterable[Turn]],
        interest: frozenset[str] | None,
        watch: Watch | None,
    ) -> None:
        self.watch = watch
        self.stream = stream
        self.s = s
        self.snapshot = snapshot
        self.live = live
        self.interest = interest
        self.outdated = False

    @property
    def knows_state(self) -> bool:
        """Whether there is nothing to tell of the state."""
        return self.watch is None or self.watch.is_current or not self.wants("state.delta")

    def wants(self, t: str) -> bool:
        """Whether messages of this type are to be sent."""
        return self.interest is None or t in self.interest


class Hearing:
    """A cursor in a turn.

    Attributes:
        i: the next chunk to send.
        due: not before this loop time.
        resync: the next text goes as `npc.turn.sync`.
        unit: of the journal, not before which the client knows of the turn.
    """

    __slots__ = ("due", "i", "resync", "turn", "unit")

    def __init__(self, turn: Turn, i: int, resync: bool, unit: int = 0) -> None:
        self.turn = turn
        self.i = i
        self.due = 0.0
        self.resync = resync
        self.unit = unit
