"""Whoever may publish can send anything, any number of times: it is bounded, and nobody notices."""

import random
import time
from pathlib import Path

import aiomqtt
import pytest

from gameserver.mqtt import ear
from gameserver.mqtt.incoming import most_under_way
from gameserver.protocol import now_ms
from gameserver.stores.store import StoreDown
from tests.gameserver.mqtt.mosquitto import Mosquitto
from tests.gameserver.mqtt.outsider import ROOT, outsider
from tests.gameserver.mqtt.test_acknowledged import BELL, told
from tests.gameserver.mqtt.test_kept import Scene
from tests.gameserver.mqtt.test_world_events import bridged, count, subscribed
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving, until
from tests.gameserver.state.walker import THINGS

REPLIES = ["The stew is hot."]
LEVELS = [
    SCENE,
    "event",
    "state",
    "result",
    "entity",
    "door",
    "open",
    "pos",
    "..",
    "x" * 300,
    "é\u202e",
]
PAYLOADS = [
    b"",
    b"\x00" * 100,
    b"\xff\xfe{",
    b'{"v":' * 200,
    b'{"v": 1e400}',
    b'{"v": true, "h": 9007199254740991}',
    b'{"v": true, "h": -1, "o": "\\u0000"}',
    b'{"ok": true, "data": {"__proto__": []}}',
    b'{"eid": {"$ne": null}}',
    '"\u202e\u0000\ud7ff"'.encode(),
    b"1" * 5000,
    b"{}" * 2000,
]


async def test_any_topics_payloads_and_ids_leave_the_node_well(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    dice = random.Random(7)
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, REPLIES, pack=THINGS, mqtt=bridged(mosquitto)) as server,
    ):
        ann = await Player.enter(server)
        await subscribed(server)
        lost = count(server, "mqtt_lost")
        for _ in range(300):
            depth = dice.randint(1, 3)
            kind = dice.choice(["event", "state", "result", "entity"])
            rest = "/".join(dice.choice(LEVELS) for _ in range(depth))
            await game.tell(
                f"scene/{SCENE}/{kind}/{rest}",
                dice.choice(PAYLOADS),
                eid=dice.choice(["", "e", "\u202e", "y" * 10_000]),
                retain=dice.random() < 0.2,
                qos=dice.choice([0, 1]),
            )
        await game.tell(BELL, "still here")
        await until(lambda: told(server)[-1:] == ["still here"])
        await until(lambda: not server.gauges()["mqtt_unacknowledged"])
        assert count(server, "mqtt_dropped_in_internal") == 0
        assert count(server, "mqtt_lost") == lost
        assert (await ann.hear())["text"] == REPLIES[0]


async def test_what_is_far_too_large_is_not_even_sent_to_us(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, REPLIES, mqtt=bridged(mosquitto)) as server,
    ):
        await Player.enter(server)
        await subscribed(server)
        for _ in range(3):
            await game.tell(BELL, b'"' + b"x" * (1 << 20) + b'"')
        await game.tell(BELL, "small")
        await until(lambda: told(server) == ["small"])
        assert count(server, "mqtt_in") == 1


async def test_a_flood_of_what_is_retained_waits_with_the_broker(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    """Of quality 1 it comes as fast as it is taken; and dialogue goes on."""
    room, most = 100, 0
    async with outsider(mosquitto, topic=f"{ROOT}/none") as game:
        for number in range(1500):
            await game.client.publish(
                f"{ROOT}/scene/{SCENE}/state/f{number}", b"1", qos=0, retain=True
            )
        await game.tell(f"scene/{SCENE}/state/weather", "snow", retain=True)
        pack = {"meta": {"weather": "rain"}}
        async with serving(
            tmp_path, REPLIES, pack=pack, mqtt=bridged(mosquitto, queue=room)
        ) as server:
            ann = await Player.enter(server)
            talk = await ann.hear()
            assert talk["text"] == REPLIES[0]
            while not count(server, "mqtt_in") >= 1501:
                most = max(most, int(server.gauges()["mqtt_waiting_in"]))
                await ann.ask("heartbeat")
            assert most <= room
            dropped = count(server, "mqtt_dropped_in_full")
            await until(lambda: not server.gauges()["mqtt_waiting_in"])
            assert count(server, "mqtt_dropped_in_forbidden") == 1500 - dropped
            world = server._world.actors[SCENE].plot.story.world()
            assert world["weather"] == "snow", "what is promised is not crowded out"
    assert most_under_way(room) < room


async def test_a_full_disk_holds_words_back_until_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not kept is not told outside, and nothing of it is lost."""
    scene = Scene(tmp_path)
    await scene.begin()
    real = scene.store.commit

    async def full(units: object) -> frozenset[str]:
        raise StoreDown("disk full")

    monkeypatch.setattr(scene.store, "commit", full)
    for _ in range(3):
        scene.act()
    await until(lambda: scene.tally.gauges().get("store_failures", 0) >= 2)
    scene.publish(9, acknowledged=True)
    assert scene.got == []
    monkeypatch.setattr(scene.store, "commit", real)
    await scene.journal.settled()
    scene.publish(9, acknowledged=True)
    assert len(scene.got) == 3
    await scene.end()


@pytest.mark.parametrize("days", [-30, 30])
async def test_a_wall_clock_that_is_set_loses_nothing_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """While the process runs, age is what a clock says that nobody sets."""
    scene, jump_ms = Scene(tmp_path), days * 86_400_000
    await scene.begin()
    scene.act()
    assert not scene.ear.came("e1")
    monkeypatch.setattr(ear, "now_ms", lambda: now_ms() + jump_ms)
    scene.act()
    assert not scene.ear.came("e2")
    assert scene.ear.came("e1")
    scene.outgoing.expire(time.monotonic() - 3600)
    assert len(scene.outgoing) == 2
    await scene.journal.settled()
    await scene.crash()
    monkeypatch.setattr(ear, "now_ms", now_ms)
    await scene.begin()  # back again: what was written in the future is not from there
    scene.outgoing.expire(time.monotonic() - 3600)
    assert len(scene.outgoing) == (2 if days > 0 else 1)
    assert scene.ear.came("e1")
    assert scene.ear.came("e2") is (days > 0), "after a restart only the wall tells how old it is"
    await scene.end()


async def test_ids_take_bounded_room_in_the_book_too(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ids=10)
    await scene.begin()
    for number in range(50):
        scene.journal.begin()
        assert not scene.ear.came(f"e{number}")
    await scene.journal.settled()
    kept = [key for key in await scene.store.keys("scene.inn") if key.startswith("came/")]
    assert len(kept) == 10
    assert scene.ear.came("e49") and not scene.ear.came("e0")
    await scene.end()


async def test_two_nodes_of_one_id_drive_each_other_out_and_lose_nothing(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    """The other one takes what is ours without a word; when it has gone, we go on."""
    async with serving(tmp_path, REPLIES, mqtt=bridged(mosquitto)) as server:
        await Player.enter(server)
        await subscribed(server)
        async with outsider(mosquitto) as game:
            options = {"identifier": "troupe-troupe", "protocol": aiomqtt.ProtocolVersion.V5}
            for number in range(3):
                lost = count(server, "mqtt_lost")
                try:
                    async with aiomqtt.Client(
                        "127.0.0.1", mosquitto.port, clean_start=False, **options
                    ):
                        await until(lambda lost=lost: count(server, "mqtt_lost") > lost)
                except aiomqtt.MqttError:
                    pass
                await subscribed(server)
                await game.tell(BELL, number, eid=f"e{number}")
                await until(lambda number=number: told(server)[-1:] == [number])
        assert told(server) == [0, 1, 2]
