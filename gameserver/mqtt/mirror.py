"""The world state of the scenes here, as the broker retains it: a topic for each key of an entity,
with the newest value and its stamp; see docs/world-state.md.

The same topics bring what others write. A value with a stamp is merged, so it does not matter how
often it comes, when, or by which way; what came from the broker does not go back there.
"""

from collections.abc import Iterator

import msgspec

from gameserver.commands import StateWrite
from gameserver.mqtt.arrivals import Arrival, Stamped, Unusable
from gameserver.mqtt.outgoing import Parcel
from gameserver.mqtt.topics import Topics
from gameserver.state.registers import Item
from gameserver.state.scene_state import SceneState
from scenes.document import ID

#: Who wrote a value that says when, but not by whom.
_SOMEBODY = "mqtt"


class _Place:
    """How far the broker knows one scene."""

    __slots__ = ("known", "rev", "state")

    def __init__(self, state: SceneState) -> None:
        self.state = state
        self.rev = 0
        self.known: dict[tuple[str, str], tuple[int, str]] = {}  # stamps that the broker has


class Mirror:
    """Follows the state of scenes, both ways."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._places: dict[str, _Place] = {}

    def follow(self, state: SceneState) -> None:
        """A scene runs here."""
        self._places[state.stream.id] = _Place(state)

    def unfollow(self, scene: str) -> None:
        """A scene does not run here any more: its values stay with the broker."""
        self._places.pop(scene, None)

    def renew(self) -> None:
        """The broker may have forgotten everything."""
        for place in self._places.values():
            place.rev = 0
            place.known.clear()

    @property
    def changed(self) -> bool:
        """Whether there may be something to publish."""
        return any(map(self.has_news, self._places))

    def has_news(self, scene: str) -> bool:
        """The same of one scene. Cheap: it is asked at each word that is spoken there."""
        place = self._places.get(scene)
        return place is not None and place.rev < place.state.published

    def news(self, durable: int) -> Iterator[Parcel]:
        """What the broker does not know yet and the journal has kept, up to unit `durable`. Scenes
        may come, go and change while it is told."""
        for scene, place in list(self._places.items()):
            for register in list(place.state.registers.since(place.rev)):
                if register.rev > place.state.published or register.unit > durable:
                    break
                place.rev = register.rev
                yield from self._parcels(scene, place, register.item)

    def take(self, arrival: Arrival) -> None:
        """Somebody else says how a thing is.

        Raises:
            Refusal: there is no such thing, or the value is not for it.
            Unusable: "retained": without a stamp, and what is here has one.
        """
        address, told = arrival.address, arrival.data
        assert isinstance(told, Stamped)
        place = self._places[address.scene]
        e, k = address.name, address.key
        if told.h is None:
            register = place.state.registers.get(e, k)
            if arrival.retained and register is not None and register.item.h:
                raise Unusable("retained")
            place.state.put([StateWrite(e, k, told.v)], quiet=arrival.retained)
            return
        item = Item(e, k, told.v, told.h, told.o or _SOMEBODY)
        if place.state.apply([item], quiet=arrival.retained):
            place.known[e, k] = item.h, item.o

    def _parcels(self, scene: str, place: _Place, item: Item) -> Iterator[Parcel]:
        stamp = item.h, item.o
        if place.known.get((item.e, item.k)) == stamp or not (
            ID.fullmatch(item.e) and ID.fullmatch(item.k)
        ):
            return
        place.known[item.e, item.k] = stamp
        topic = self._topics.entity(scene, item.e, item.k)
        yield Parcel(topic, msgspec.json.encode(item), retained=item.v is not None)
        if item.v is None:  # those who come later need not know that it was there
            del place.known[item.e, item.k]
            yield Parcel(topic, b"", retained=True)
