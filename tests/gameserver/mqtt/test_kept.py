"""What is promised to go out goes out, whatever ends meanwhile: the broker, this process, both."""

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gameserver.ledger import OUTBOX, Ledger
from gameserver.messages import NpcAction
from gameserver.mqtt.ear import Ear
from gameserver.mqtt.outgoing import Outgoing, Parcel
from gameserver.mqtt.topics import Topics
from gameserver.stores.journal import Book, Journal
from gameserver.stores.sqlite import SqliteStore
from gameserver.stores.store import Holding
from gameserver.streams import Stream
from gameserver.tally import Tally
from tests.gameserver.mqtt.mosquitto import PROGRAM, Mosquitto
from tests.gameserver.mqtt.outsider import outsider
from tests.gameserver.mqtt.test_trouble import texts
from tests.gameserver.mqtt.test_world_events import bridged, up
from tests.gameserver.stage import SCENE, settings_with, until
from tests.gameserver.test_restart import Crashing, entered

REPLIES = ["The bridge is gone.", "The stew is hot.", "Mind the cat."]


async def crash(node: Crashing) -> None:
    """As `kill -9` would, its way to the broker included."""
    bridge = node.server._bridge
    assert bridge is not None
    for task in bridge._tasks:
        task.cancel()
    await node.crash()


async def test_words_that_the_broker_has_not_got_outlive_a_crash(tmp_path: Path) -> None:
    """Nobody has to come back for them: the scene is opened for it."""
    if PROGRAM is None:
        pytest.skip("mosquitto is not installed")
    mosquitto = Mosquitto(tmp_path, persistent=True).start()
    node = Crashing(tmp_path, REPLIES, mqtt=bridged(mosquitto))
    try:
        async with outsider(mosquitto, session="game"):
            pass  # subscribed from now on
        server = await node.start()
        await until(lambda: up(server))
        ann = await entered(node)
        mosquitto.end(signal.SIGTERM)
        await until(lambda: not up(server))
        for line in ("One?", "Two?", "Three?"):
            await ann.ask("say", {"npc": "mira", "text": line})
            await ann.until("npc.turn.end")
        await crash(node)
        server = await node.start()
        mosquitto.start()
        async with outsider(mosquitto, session="game") as game:
            await until(lambda: len(texts(game)) == 3)
            assert texts(game) == REPLIES
        await until(lambda: not server.gauges()["mqtt_waiting_out"])
        await server._journal.settled()
        keys = await node._store.keys(f"scene.{SCENE}")
        assert not [key for key in keys if key.startswith(OUTBOX)]
        await node.stop()
    finally:
        mosquitto.end()


class Scene:
    """A scene in one process after another, and what the broker has got of it."""

    def __init__(self, folder: Path, room: int = 1000, ids: int = 1000) -> None:
        self.folder, self.room, self.ids = folder, room, ids
        self.got: list[str] = []
        self.tally = Tally()
        self.epoch = 0

    async def begin(self) -> None:
        self.store = SqliteStore(self.folder)
        await self.store.open()
        self.journal = Journal(self.store, self.tally)
        self.journal.start()
        held = await self.store.claim("scene.inn", lease=False)
        assert isinstance(held, Holding)
        self.outgoing = Outgoing(self.room, self.tally)
        book = Book("scene.inn", self.journal, held)
        self.stream = Stream("inn", held.epoch, settings_with().flow, book)
        self.stream.restore({})
        mqtt = settings_with(mqtt={"url": "mqtt://broker", "dedupe_ids": self.ids}).mqtt
        assert mqtt is not None
        actor: Any = SimpleNamespace(stream=self.stream, ledger=Ledger(book, 500))
        self.ear = Ear(
            actor,
            Topics("t"),
            mqtt,
            self.journal,
            add=self.outgoing.add,
            mark=lambda latest: None,
            stirred=lambda ear: None,
        )

    def act(self) -> None:
        self.journal.begin()
        self.stream.append("npc.action", NpcAction("t-1", "a-1", "wave", {}, 0, "mira", "ann"))

    def publish(self, most: int, *, acknowledged: bool) -> None:
        parcels: Sequence[Parcel] = self.outgoing.events(most, self.journal.durable)
        self.got += [parcel.eid for parcel in parcels]
        if acknowledged:
            self.journal.begin()
            self.outgoing.sent(parcels)

    async def crash(self) -> None:
        """What is not committed is lost; nothing more is."""
        assert self.journal._task is not None
        self.journal._task.cancel()
        await asyncio.gather(self.journal._task, return_exceptions=True)
        await self.store.close()

    async def end(self) -> None:
        await self.journal.stop()
        await self.store.close()


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_ends_when_all_that_was_kept_arrives_in_order(
    tmp_path: Path, seed: int
) -> None:
    """At least once, and each under one id; what comes again comes under its old one."""
    dice, scene = random.Random(seed), Scene(tmp_path)
    await scene.begin()
    promised: list[str] = []
    for _ in range(40):
        match dice.choice(["act", "act", "publish", "lose", "settle", "crash"]):
            case "act":
                scene.act()
                if dice.random() < 0.7:  # who was told of it, knows that it is kept
                    await scene.journal.settled()
                    promised.append(f"inn:{scene.stream.ep}:{scene.stream.last}")
            case "publish":
                scene.publish(dice.randint(1, 3), acknowledged=True)
            case "lose":
                scene.publish(dice.randint(1, 3), acknowledged=False)
            case "settle":
                await scene.journal.settled()
            case "crash":
                await scene.crash()
                await scene.begin()
    await scene.journal.settled()
    scene.publish(1000, acknowledged=True)
    firsts = list(dict.fromkeys(scene.got))
    assert set(promised) <= set(firsts)
    assert [eid for eid in firsts if eid in set(promised)] == promised
    await scene.journal.settled()
    assert not [key for key in await scene.store.keys("scene.inn") if key.startswith(OUTBOX)]
    await scene.end()


async def test_what_is_dropped_is_counted_and_not_kept_either(tmp_path: Path) -> None:
    scene = Scene(tmp_path, room=3)
    await scene.begin()
    for _ in range(5):
        scene.act()
    await scene.journal.settled()
    kept = [key for key in await scene.store.keys("scene.inn") if key.startswith(OUTBOX)]
    assert len(kept) == 3
    assert scene.tally.gauges()["mqtt_dropped_out_full"] == 2
    scene.journal.begin()
    scene.outgoing.expire(time.monotonic() + 1)
    await scene.journal.settled()
    assert not [key for key in await scene.store.keys("scene.inn") if key.startswith(OUTBOX)]
    assert scene.tally.gauges()["mqtt_dropped_out_old"] == 3
    await scene.end()


async def test_who_has_lost_the_scene_touches_nothing_of_it(tmp_path: Path) -> None:
    """The next owner has it to tell."""
    scene = Scene(tmp_path)
    await scene.begin()
    scene.act()
    await scene.journal.settled()
    scene.ear.close()
    scene.publish(9, acknowledged=True)
    await scene.journal.settled()
    await scene.end()
    await scene.begin()
    assert len(scene.outgoing) == 1
    await scene.end()
