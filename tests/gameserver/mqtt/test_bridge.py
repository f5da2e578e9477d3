"""The bridge's patience, with a broker of ours that does what it is told."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from gameserver.mqtt.arrivals import Delivery
from gameserver.mqtt.bridge import Bridge
from gameserver.mqtt.broker import BrokerLost, Connection
from gameserver.mqtt.outgoing import Outgoing, Parcel
from gameserver.mqtt.topics import Topics
from gameserver.stores.journal import Journal
from gameserver.stores.memory import MemoryStore
from gameserver.tally import Tally
from tests.gameserver.stage import settings_with, until


class Fake:
    """Connections that end as `fate` says."""

    def __init__(self, fate: Callable[[], BrokerLost], *, refuses: bool = False) -> None:
        self.fate = fate
        self.refuses = refuses
        self.connections = 0
        self.take: Callable[[Delivery], None] = lambda delivery: None

    @asynccontextmanager
    async def connect(self, take: Callable[[Delivery], None]) -> AsyncIterator[Connection]:
        self.take = take
        self.connections += 1
        if self.refuses:
            raise self.fate()
        yield self

    async def subscribe(self, topics: Sequence[str]) -> None: ...

    async def unsubscribe(self, topics: Sequence[str]) -> None: ...

    async def publish(self, parcels: Sequence[Parcel]) -> None: ...

    async def over(self) -> NoReturn:
        raise self.fate()


async def nobody(scene: str) -> bool:
    """There is no such scene anywhere."""
    return False


class Stage:
    """A bridge whose waits are written down and take no time."""

    def __init__(self, broker: Fake, **mqtt: object) -> None:
        settings = settings_with(mqtt={"url": "mqtt://broker", **mqtt})
        self.waits: list[float] = []
        self.tally = Tally()
        self.journal = Journal(MemoryStore(), self.tally)
        topics = Topics("troupe/v1")
        self.bridge = Bridge(
            broker, topics, settings, self.journal, self.tally, self._sleep, reopen=nobody
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0 if len(self.waits) < 40 else 60)

    def count(self, name: str) -> float:
        return self.tally.gauges().get(name, 0)


async def test_waits_grow_are_spread_and_have_a_bound() -> None:
    stage = Stage(Fake(lambda: BrokerLost("refused"), refuses=True))
    stage.bridge.start()
    await until(lambda: len(stage.waits) == 40)
    await stage.bridge.stop()
    assert all(wait <= 0.5 * 2**n for n, wait in enumerate(stage.waits))
    assert all(7.5 <= wait <= 30 for wait in stage.waits[10:])
    assert len(set(stage.waits)) > 30


async def test_two_clients_of_one_id_do_not_fight_for_ever() -> None:
    broker = Fake(lambda: BrokerLost("taken over", taken_over=True))
    stage = Stage(broker)
    stage.bridge.start()
    await until(lambda: stage.bridge.gave_up)
    await stage.bridge.stop()
    assert broker.connections == stage.count("mqtt_taken_over") == 6
    assert stage.waits[-1] > 7.5
    assert stage.bridge.gauges()["mqtt_gave_up"]


async def test_a_broker_that_only_hangs_up_is_never_given_up_but_suspected_once() -> None:
    stage = Stage(Fake(lambda: BrokerLost("gone")))
    stage.bridge.start()
    await until(lambda: len(stage.waits) == 40)
    assert stage.count("mqtt_brief") == 1
    assert not stage.bridge.gave_up
    assert min(stage.waits[10:]) >= 7.5
    await stage.bridge.stop()


async def test_what_arrives_while_the_store_is_away_waits_and_beyond_the_bound_is_counted() -> None:
    broker = Fake(lambda: BrokerLost("gone"))
    stage = Stage(broker, queue=10)
    stage.journal.deadline = 0.0
    stage.bridge.start()
    await until(lambda: broker.connections > 0)
    for number in range(25):
        broker.take(Delivery(f"troupe/v1/scene/inn/event/e{number}", b"1"))
    assert stage.bridge.gauges()["mqtt_waiting_in"] == 10
    assert stage.count("mqtt_dropped_in_full") == 15
    await asyncio.sleep(0.15)
    assert stage.bridge.gauges()["mqtt_waiting_in"] == 10
    stage.journal.deadline = float("inf")
    await until(lambda: not stage.bridge.gauges()["mqtt_waiting_in"])
    assert stage.count("mqtt_dropped_in_no_scene") == 10
    await stage.bridge.stop()


@pytest.mark.parametrize("cheap", [0, 2])
def test_a_full_queue_drops_quality_0_first_and_then_the_oldest(cheap: int) -> None:
    tally = Tally()
    outgoing = Outgoing(5, tally)
    for number in range(5):
        outgoing.add(Parcel(f"t/{number}", b"", qos=int(number < 5 - cheap)))
    for number in (5, 6):
        outgoing.add(Parcel(f"t/{number}", b""))
    kept = [event.topic[2:] for event in outgoing.events(9, 0)]
    assert kept == (["2", "3", "4", "5", "6"] if not cheap else ["0", "1", "2", "5", "6"])
    assert tally.gauges()["mqtt_dropped_out_full"] == 2


def test_what_was_dropped_while_it_was_sent_is_not_asked_for_again() -> None:
    outgoing = Outgoing(2, Tally())
    for number in range(2):
        outgoing.add(Parcel(f"t/{number}", b""))
    under_way = outgoing.events(2, 0)
    outgoing.add(Parcel("t/2", b""))
    outgoing.sent(under_way)
    assert [event.topic for event in outgoing.events(9, 0)] == ["t/2"]
