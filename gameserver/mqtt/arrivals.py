"""What came from the broker, read and checked: what is wrong with it, and whether it came before.

A message is delivered again when its acknowledgement was lost, so each carries an id (`eid`); an id
that came lately is dropped. Without an id nothing tells a second delivery from a second event.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from gameserver.inbound import parse_json
from gameserver.mqtt.topics import Address, Topics
from gameserver.protocol import Refusal
from gameserver.settings import Limits, MqttSettings
from scenes.document import Scalar

#: Characters of a fact that is text, as in a scene's `meta`.
MAX_TEXT = 200
_MAX_EID = 128
Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as the broker delivers it.

    Attributes:
        retained: kept by the broker since before we asked for it: it tells how things are, and
            nothing that happens.
        eid: its user property of that name; "" for none.
        correlation: its correlation data, for which an answer is.
    """

    topic: str
    payload: bytes
    retained: bool = False
    eid: str = ""
    correlation: bytes = b""


class Stamped(msgspec.Struct, frozen=True):
    """How a thing is: `{v, h?, o?}`, see docs/world-state.md."""

    v: Any
    h: int | None = None
    o: Annotated[str, msgspec.Meta(max_length=64)] = ""


class Outcome(msgspec.Struct, frozen=True):
    """What became of an action: `{ok, data?}`."""

    ok: bool
    data: Any = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """Something for a scene.

    Attributes:
        address: where it goes.
        data: of an event, what JSON can say; of a fact its value, None to take it back; a `Stamped`
            of an entity, an `Outcome` of an action.
        retained: see `Delivery`.
    """

    address: Address
    data: Any
    retained: bool = False


class Unusable(Exception):
    """A message that is dropped. `cause` is a word for the counters."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Arrivals:
    """Reads deliveries, and remembers their ids for a while."""

    def __init__(
        self,
        topics: Topics,
        settings: MqttSettings,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives monotonic seconds."""
        self._topics = topics
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], float] = OrderedDict()

    def read(self, delivery: Delivery) -> Arrival:
        """What a delivery says.

        Raises:
            Unusable: "topic", "retained" (an event that a broker has kept), "duplicate",
                "bad_value" (not of the form that the topic wants), "bad_correlation" (an answer to
                another action), or as `parse_json`.
        """
        address = self._topics.read(delivery.topic)
        if address is None:
            raise Unusable("topic")
        if address.kind in ("event", "result") and delivery.retained:
            raise Unusable("retained")
        if len(delivery.payload) > self._limits.event_bytes:
            raise Unusable("too_large")
        data = self._parse(delivery.payload)
        eid: object = delivery.eid
        match address.kind:
            case "state":  # the same state twice is no news: it needs no id
                return Arrival(address, _fact(data), delivery.retained)
            case "entity":
                data = _converted(data, Stamped)
            case "result":
                if delivery.correlation not in (b"", address.name.encode()):
                    raise Unusable("bad_correlation")
                data = _converted(data, Outcome)
                eid = eid or "result"  # there is one for each action
            case "event" if isinstance(data, dict):
                eid = eid or data.get("eid")
        if isinstance(eid, str) and eid and self._came(delivery.topic, eid[:_MAX_EID]):
            raise Unusable("duplicate")
        return Arrival(address, data, delivery.retained)

    def _parse(self, payload: bytes) -> Any:
        if not payload.strip():
            return None
        try:
            return parse_json(payload, self._limits)
        except Refusal as refusal:
            raise Unusable(refusal.code) from refusal

    def _came(self, topic: str, eid: str) -> bool:
        """Whether this event came lately; if not, it has now."""
        now, window = self._clock(), self._settings.dedupe_s
        while self._seen and (
            len(self._seen) > self._settings.dedupe_ids
            or now - next(iter(self._seen.values())) > window
        ):
            self._seen.popitem(last=False)
        if (topic, eid) in self._seen:
            return True
        self._seen[topic, eid] = now
        return False


def _converted(data: Any, kind: type[Form]) -> Form:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise Unusable("bad_value") from error


def _fact(value: object) -> Scalar | None:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str) and len(value) <= MAX_TEXT:
        return value
    raise Unusable("bad_value")
