"""What has arrived, in order, until a scene has taken it and the store has what became of it.

Only then is it acknowledged, and in the order in which it came, as MQTT wants it: until then the
broker has it, so that no crash of ours loses it.
"""

import math
from collections import deque
from dataclasses import dataclass

from gameserver.mqtt.arrivals import Arrival, Delivery
from gameserver.stores.journal import Gate
from gameserver.tally import Tally


@dataclass(slots=True, eq=False)
class Incoming:
    """Something that has arrived.

    Attributes:
        delivery: as it came.
        arrival: as it was read; None: it cannot be used, and waits for its turn to be acknowledged.
        unit: of the journal, with which it may be acknowledged; infinity while that is not known.
    """

    delivery: Delivery
    arrival: Arrival | None
    unit: float = math.inf


class Reception:
    """Messages that wait for their scenes, and those that wait for the store.

    There is room for so many that wait. The broker is told to have at most `unacknowledged`
    under way, half of that, so what is promised fits in twice: that of a connection that is over,
    and the same again by the next one. Beyond the room the oldest of quality 0 goes, else the
    oldest; it is counted and not acknowledged, so that the broker brings it again.
    """

    def __init__(self, room: int, journal: Gate, tally: Tally) -> None:
        self._room = room
        self._journal = journal
        self._tally = tally
        self._waiting: deque[Incoming] = deque()
        self._taken: deque[Incoming] = deque()  # and not acknowledged yet

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def unacknowledged(self) -> int:
        """Messages that have been taken, while the store does not have what became of them."""
        return len(self._taken)

    def add(self, delivery: Delivery, arrival: Arrival | None) -> None:
        """Something has arrived."""
        if arrival is None and not delivery.qos:
            return
        self._waiting.append(Incoming(delivery, arrival))
        if len(self._waiting) > self._room:
            cheap = (other for other in self._waiting if other.delivery.qos == 0)
            self._waiting.remove(next(cheap, self._waiting[0]))
            self._tally.count("mqtt_dropped_in_full")

    def take(self) -> Incoming:
        """The oldest that waits. It is to be `done`."""
        one = self._waiting.popleft()
        if one.delivery.qos:
            self._taken.append(one)
        return one

    def done(self, one: Incoming, unit: float) -> None:
        """One has become something that is written down up to a unit of the journal."""
        one.unit = unit
        self.acknowledge()

    def undo(self, scene: str) -> list[Incoming]:
        """A scene was lost before the store had what became of these."""
        undone = [
            one
            for one in self._taken
            if one.arrival is not None
            and one.arrival.address.scene == scene
            and self._journal.durable < one.unit < math.inf
        ]
        for one in undone:
            one.unit = math.inf
        return undone

    def acknowledge(self) -> None:
        """Acknowledge what the store has."""
        while self._taken and self._taken[0].unit <= self._journal.durable:
            self._taken.popleft().delivery.acknowledge()
        if self._taken and self._taken[0].unit < math.inf:
            self._journal.when_opened(self.acknowledge)


def most_under_way(room: int) -> int:
    """How many messages a broker may send before the first is acknowledged; see `Reception`."""
    return min(max(room // 2, 1), 65_535)
