"""What came from the broker, read and checked: where it goes, and what is wrong with it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from gameserver.inbound import parse_json
from gameserver.mqtt.topics import Address, Topics
from gameserver.protocol import Refusal
from gameserver.settings import Limits
from scenes.document import Scalar

#: Characters of a fact that is text, as in a scene's `meta`.
MAX_TEXT = 200
Form = TypeVar("Form")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as the broker delivers it.

    Attributes:
        retained: kept by the broker since before we asked for it: it tells how things are, and
            nothing that happens.
        eid: its user property of that name; "" for none.
        correlation: its correlation data, for which an answer is.
        via: the node that passed it on to us; "" if it came straight from who published it.
        qos: 1 if it is kept by the broker until it is acknowledged.
        acknowledge: tells the broker that it need not keep it any more. Harmless once the
            connection it came by is over.
    """

    topic: str
    payload: bytes
    retained: bool = False
    eid: str = ""
    correlation: bytes = b""
    via: str = ""
    qos: int = 0
    acknowledge: Callable[[], object] = lambda: None


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
        known_as: what a second delivery of the same would be known by; "" if nothing tells one from
            a second message.
    """

    address: Address
    data: Any
    retained: bool = False
    known_as: str = ""


class Unusable(Exception):
    """A message that is dropped. `cause` is a word for the counters."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Arrivals:
    """Reads deliveries."""

    def __init__(self, topics: Topics, limits: Limits) -> None:
        self._topics = topics
        self._limits = limits

    def read(self, delivery: Delivery) -> Arrival:
        """What a delivery says.

        Raises:
            Unusable: "topic", "retained" (an event that a broker has kept), "bad_value"
                (not of the form that the topic wants), "bad_correlation" (an answer to
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
        known_as = _digest(address, eid) if isinstance(eid, str) and eid else ""
        return Arrival(address, data, delivery.retained, known_as)

    def _parse(self, payload: bytes) -> Any:
        if not payload.strip():
            return None
        try:
            return parse_json(payload, self._limits)
        except Refusal as refusal:
            raise Unusable(refusal.code) from refusal


def _digest(address: Address, eid: str) -> str:
    """Of whatever length an id is, something short that no other one of its topic has."""
    named = "\0".join((address.kind, address.name, address.key, eid))
    return hashlib.blake2b(named.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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
