"""What is to be published: events in order, and of what has a state only the newest."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from gameserver.streams import Latest
from gameserver.tally import Tally


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message for the broker.

    Attributes:
        eid: its user property of that name, by which a receiver knows a second delivery; "" for a
            state.
        retained: a state, which the broker keeps for those who come later.
        answers: topic for an answer, whose correlation data is `about`; "" if none is expected.
        about: see there.
        via: the node that passes it on for somebody else; "" if it is our own.
        scene: that tells it; "" if no scene does.
        unit: of the journal, after which it may be sent.
        since: monotonic time from which on it waits.
        done: called when it need not be kept any more: the broker has it, or it was dropped.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retained: bool = False
    eid: str = ""
    answers: str = ""
    about: str = ""
    via: str = ""
    scene: str = ""
    unit: int = 0
    since: float = 0.0
    done: Callable[[], None] = lambda: None


class Outgoing:
    """Events wait until the broker has acknowledged them. There is room for so many; beyond, the
    oldest of quality 0 goes, else the oldest, and it is counted.

    States are not queued: what has changed is marked, and encoded when it is sent.
    """

    def __init__(self, room: int, tally: Tally) -> None:
        self._room = room
        self._tally = tally
        self._events: deque[Parcel] = deque()
        self._changed: dict[Latest, None] = {}

    def __len__(self) -> int:
        return len(self._events)

    def __bool__(self) -> bool:
        return bool(self._events or self._changed)

    def add(self, event: Parcel) -> None:
        """Queue an event."""
        self._events.append(event)
        if len(self._events) > self._room:
            cheap = (other for other in self._events if other.qos == 0)
            dropped = next(cheap, self._events[0])
            self._events.remove(dropped)
            self._drop(dropped, "out_full")

    def expire(self, before: float) -> None:
        """Drop events that wait since before a monotonic time: who comes for them so late is told
        nothing new."""
        for event in [event for event in self._events if event.since < before]:
            self._events.remove(event)
            self._drop(event, "out_old")

    def mark(self, latest: Latest) -> None:
        """A state has changed, or the broker may have lost it."""
        self._changed[latest] = None

    def disown(self, scene: str) -> None:
        """What a scene tells is another node's to send: it has all that was kept of it."""
        self._events = deque(event for event in self._events if event.scene != scene)

    def unmark(self, scene: str) -> None:
        """A scene is not ours any more: nothing is told of its states."""
        for latest in [each for each in self._changed if each.stream.id == scene]:
            del self._changed[latest]

    def events(self, most: int, durable: int) -> Sequence[Parcel]:
        """The oldest events, up to the first that the journal does not have yet. They stay here
        until they are `sent`."""
        return list(islice(self._kept(durable), most))

    def sent(self, events: Sequence[Parcel]) -> None:
        """The broker has these. Some may have been dropped meanwhile."""
        done = set(map(id, events))
        self._events = deque(event for event in self._events if id(event) not in done)
        for event in events:
            event.done()

    def take_changed(self) -> Latest | None:
        """One of the states that have changed; None if none has."""
        latest = next(iter(self._changed), None)
        if latest is not None:
            del self._changed[latest]
        return latest

    def _kept(self, durable: int) -> Iterator[Parcel]:
        return takewhile(lambda event: event.unit <= durable, self._events)

    def _drop(self, event: Parcel, why: str) -> None:
        self._tally.count(f"mqtt_dropped_{why}")
        event.done()
