"""What comes in is acknowledged when the store has what became of it, and not before: a crash at
any moment loses nothing that has an id, and doubles nothing."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gameserver.game import GameServer
from gameserver.mqtt.arrivals import Arrival, Delivery
from gameserver.mqtt.incoming import Reception, most_under_way
from gameserver.mqtt.topics import Address
from gameserver.stores.journal import Gate
from gameserver.stores.sqlite import SqliteStore
from gameserver.stores.store import Holding
from gameserver.tally import Tally
from tests.gameserver.mqtt.mosquitto import PROGRAM, Mosquitto
from tests.gameserver.mqtt.outsider import Outsider, outsider
from tests.gameserver.mqtt.test_kept import REPLIES, crash
from tests.gameserver.mqtt.test_world_events import bridged, count, subscribed, up
from tests.gameserver.player import Player
from tests.gameserver.process import Process
from tests.gameserver.stage import SCENE, until, write_pack
from tests.gameserver.test_crashes import FREE
from tests.gameserver.test_restart import Crashing, entered

BELL = f"scene/{SCENE}/event/bell"


class Desk:
    """A reception and what it has acknowledged."""

    def __init__(self, room: int = 8) -> None:
        self.gate = Gate()
        self.tally = Tally()
        self.reception = Reception(room, self.gate, self.tally)
        self.acknowledged: list[int] = []

    def come(self, number: int, *, usable: bool = True, qos: int = 1) -> None:
        delivery = Delivery("t", b"", qos=qos, acknowledge=lambda: self.acknowledged.append(number))
        arrival = Arrival(Address("inn", "event", f"e{number}"), number)
        self.reception.add(delivery, arrival if usable else None)

    def keep(self, unit: int) -> None:
        self.gate.durable = unit
        self.gate._open()


def test_acknowledgements_follow_the_store_and_the_order_of_arrival() -> None:
    desk = Desk()
    for number in range(4):
        desk.come(number, usable=number != 2)
    taken = [desk.reception.take() for _ in range(4)]
    for one, unit in zip(reversed(taken), (7, 5, 6, 5), strict=True):
        desk.reception.done(one, unit)
    assert desk.acknowledged == []
    desk.keep(5)
    assert desk.acknowledged == [0]
    desk.keep(6)
    assert desk.acknowledged == [0, 1, 2]
    desk.keep(7)
    assert desk.acknowledged == [0, 1, 2, 3]
    assert desk.reception.unacknowledged == 0


def test_what_has_no_room_is_not_acknowledged_and_quality_0_goes_first() -> None:
    desk = Desk(room=2)
    desk.come(0)
    desk.come(1, qos=0)
    desk.come(2)
    desk.come(3)
    assert desk.tally.gauges()["mqtt_dropped_in_full"] == 2
    while desk.reception:
        desk.reception.done(desk.reception.take(), 0)
    assert desk.acknowledged == [2, 3]
    assert 2 * most_under_way(2) <= 2 and most_under_way(1) == 1
    assert most_under_way(10**9) == 65_535


def test_what_a_lost_scene_made_of_messages_is_undone() -> None:
    desk = Desk()
    for number in range(3):
        desk.come(number)
    taken = [desk.reception.take() for _ in range(3)]
    for number, one in enumerate(taken):
        desk.reception.done(one, number)
    assert desk.acknowledged == [0]
    assert desk.reception.undo("elsewhere") == []
    assert desk.reception.undo("inn") == taken[1:]
    desk.keep(9)
    assert desk.acknowledged == [0]
    for one in taken[1:]:
        desk.reception.done(one, 0)
    assert desk.acknowledged == [0, 1, 2]


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that forgets nothing."""
    if PROGRAM is None:
        pytest.skip("mosquitto is not installed")
    server = Mosquitto(tmp_path, persistent=True).start()
    yield server
    server.end()


def told(server: GameServer) -> list[Any]:
    """The data of the events that a scene knows of."""
    window = server._world.actors[SCENE].stream._window
    messages = [json.loads(event.message.json) for event in window]
    return [m["d"]["data"] for m in messages if m["t"] == "world.event"]


async def stall(server: GameServer) -> None:
    """From now on the store takes nothing, as if its disk hung."""

    async def never(units: object) -> frozenset[str]:
        await asyncio.Event().wait()
        raise AssertionError

    server._journal.store.commit = never  # type: ignore[assignment, method-assign]


async def tell(game: Outsider, *numbers: int) -> None:
    for number in numbers:
        await game.tell(BELL, number, eid=f"e{number}")


async def test_a_crash_right_after_arrival_loses_nothing_and_doubles_nothing(
    tmp_path: Path, lasting: Mosquitto
) -> None:
    """The store has some of it, some was handled and not kept, and some comes while nobody is
    there. Nobody has to come back for it: the scene is opened for what comes."""
    node = Crashing(tmp_path, REPLIES, mqtt=bridged(lasting))
    async with outsider(lasting) as game:
        server = await node.start()
        await entered(node)
        await subscribed(server)
        await tell(game, 1, 2)
        await until(lambda: server.gauges()["mqtt_in"] == 2)
        await server._journal.settled()
        await until(lambda: not server.gauges()["mqtt_unacknowledged"])
        await stall(server)
        await tell(game, 3, 4)
        await until(lambda: server.gauges()["mqtt_in"] == 4)
        await until(lambda: server.gauges()["mqtt_unacknowledged"] == 2)
        await crash(node)
        await tell(game, 4, 5)  # whoever publishes may try again, too
        server = await node.start()
        await until(lambda: SCENE in server._world.actors)
        await until(lambda: count(server, "mqtt_in") == 4)
        assert count(server, "mqtt_dropped_in_duplicate") == 1
        assert told(server) == [1, 2, 3, 4, 5]
        await node.stop()


async def test_what_the_broker_brings_twice_is_known_after_a_crash(
    tmp_path: Path, lasting: Mosquitto
) -> None:
    node = Crashing(tmp_path, REPLIES, mqtt=bridged(lasting))
    async with outsider(lasting) as game:
        for _ in range(2):
            server = await node.start()
            ann = await entered(node)
            await subscribed(server)
            await tell(game, 1)
            await until(lambda: count(server, "mqtt_in") >= 1)  # noqa: B023
            await server._journal.settled()
            duplicates = count(server, "mqtt_dropped_in_duplicate")
            if not duplicates:
                await ann.until("world.event")
                await crash(node)
        assert duplicates == 1
        await node.stop()


async def test_nothing_is_acknowledged_while_the_store_takes_nothing(
    tmp_path: Path, lasting: Mosquitto
) -> None:
    """The broker holds what is under way, and what comes next; when the store is well, all of it
    arrives, and memory was bounded meanwhile."""
    node = Crashing(tmp_path, REPLIES, mqtt=bridged(lasting, queue=10), store={"wait_s": 0.05})
    async with outsider(lasting) as game:
        server = await node.start()
        await entered(node)
        await subscribed(server)
        server._journal.deadline = 0.0
        await tell(game, *range(40))
        await until(lambda: count(server, "mqtt_in") == most_under_way(10))
        await game.tell(BELL, "hurried", qos=0)
        await until(lambda: server.gauges()["mqtt_waiting_in"] == most_under_way(10) + 1)
        server._journal.deadline = float("inf")
        await until(lambda: told(server)[-1:] == [39])
        assert [n for n in told(server) if n != "hurried"] == [*range(40)]
        assert count(server, "mqtt_dropped_in_full") == 0
    await node.stop()


async def test_a_broker_that_is_killed_has_what_was_not_acknowledged(
    tmp_path: Path, lasting: Mosquitto
) -> None:
    """It comes again by the next connection, while the first delivery still waits here."""
    node = Crashing(tmp_path, REPLIES, mqtt=bridged(lasting, queue=10))
    server = await node.start()
    await entered(node)
    await subscribed(server)
    server._journal.deadline = 0.0
    async with outsider(lasting) as game:
        await tell(game, *range(8))
        await until(lambda: count(server, "mqtt_in") == most_under_way(10))
    lasting.end(signal.SIGTERM)  # it writes down what it has, as it does each second by itself
    await until(lambda: not up(server))
    lasting.start()
    await until(lambda: count(server, "mqtt_in") == 2 * most_under_way(10))
    server._journal.deadline = float("inf")
    server._journal._open()
    await until(lambda: told(server)[-1:] == [7])
    assert told(server) == [*range(8)]
    assert count(server, "mqtt_dropped_in_duplicate") == most_under_way(10)
    await node.stop()


async def test_kill_9_in_a_stream_of_events_loses_none_and_doubles_none(
    tmp_path: Path, lasting: Mosquitto
) -> None:
    """A process of its own, killed with whatever was on its way just then; twice."""
    pack, data = write_pack(tmp_path / "pack"), tmp_path / "data"
    data.mkdir()
    settings = {**FREE, "scenes": [str(pack)], "data": str(data), "mqtt": bridged(lasting)}
    node = await Process(tmp_path, ["Hm."], 1.0, **settings).start()
    last = 0
    try:
        async with outsider(lasting) as game:
            ann = await Player.enter(node)  # type: ignore[arg-type]
            await told_of(ann, game)
            for _ in range(2):
                for number in range(last + 1, last + 46):
                    if number == last + 41:
                        node.kill()
                    await game.tell(BELL, f"n{number:03}.", eid=f"e{number}")
                last += 45
                await node.start()
            ann = await Player.enter(node)  # type: ignore[arg-type]
            await told_of(ann, game)
    finally:
        node.kill()
    store = SqliteStore(data)
    await store.open()
    held = await store.claim(f"scene.{SCENE}", lease=False)
    await store.close()
    assert isinstance(held, Holding)
    kept = [value for _, value in held.log]
    times = [sum(f"n{n:03}.".encode() in value for value in kept) for n in range(1, last + 1)]
    assert times == [1] * last


async def told_of(player: Player, game: Outsider) -> None:
    """Wait until what is published arrives: all before it has."""
    event = asyncio.ensure_future(player.get("world.event", name="drum"))
    while not event.done():
        await game.tell(f"scene/{SCENE}/event/drum")
        await asyncio.wait([event], timeout=0.1)
