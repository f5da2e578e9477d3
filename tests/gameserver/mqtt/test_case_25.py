"""What else a broker may do to us (case 25): floods, forgetting everything, a will that waits."""

import contextlib
import socket
from pathlib import Path

import aiomqtt

from gameserver.mqtt.choose import choose_broker
from tests.gameserver.mqtt.mosquitto import Mosquitto
from tests.gameserver.mqtt.outsider import outsider
from tests.gameserver.mqtt.test_world_events import PACK, REPLIES, bridged, count, subscribed, up
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving, settings_with, until

FACTS, BELLS, ROOM = 5_000, 300, 200
STATUS = "node/troupe/status"
OFFLINE = {"online": False}


async def test_a_flood_is_bounded_counted_and_keeps_nobody_from_talking(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    mqtt = bridged(mosquitto, queue=ROOM, timeout_s=5.0)
    async with outsider(mosquitto, f"none/{SCENE}") as game:
        for number in range(FACTS):
            topic = f"scene/{SCENE}/state/fact{number}"
            await game.tell(topic, number, retain=True, qos=0)
        async with serving(tmp_path, REPLIES, pack=PACK, mqtt=mqtt) as server:
            ann = await Player.enter(server)
            for number in range(BELLS):  # as many as a client can be told that does not read
                await game.tell(f"scene/{SCENE}/event/bell", number, qos=0)
            assert (await ann.hear())["text"] == REPLIES[0]
            await subscribed(server)
            await game.tell(f"scene/{SCENE}/event/last")
            await ann.get("world.event", name="last")
            gauges = server.gauges()
            assert gauges["mqtt_waiting_in"] <= ROOM
            bells = sum(m["t"] == "world.event" for m in ann.log) - 1
            dropped = {key: n for key, n in gauges.items() if key.startswith("mqtt_dropped_in_")}
            assert set(dropped) <= {"mqtt_dropped_in_forbidden", "mqtt_dropped_in_full"}
            assert gauges["mqtt_in"] == sum(dropped.values()) + bells + 1
            assert ann.types().count("npc.turn.start") == 1, "nobody else was made to speak"


async def test_a_broker_that_forgets_everything_is_asked_and_told_again(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with serving(tmp_path, REPLIES, pack=PACK, mqtt=bridged(mosquitto)) as server:
        ann = await Player.enter(server)
        await ann.hear()
        await subscribed(server)
        mosquitto.end()
        await until(lambda: not up(server))
        mosquitto.start()
        async with outsider(mosquitto) as game:
            await until(lambda: {"online": True} in game.about(STATUS))
            await until(lambda: game.about(f"scene/{SCENE}/npc/mira/state"))
            await subscribed(server)
            await game.tell(f"scene/{SCENE}/event/bell", "back")
            await ann.get("world.event", data="back")


async def test_who_is_back_before_its_will_is_due_was_never_away(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    mqtt = bridged(mosquitto, will_delay_s=60)
    async with outsider(mosquitto) as game:
        async with serving(tmp_path, REPLIES, mqtt=mqtt) as server:
            await until(lambda: up(server))
            options = {"identifier": "troupe-troupe", "protocol": aiomqtt.ProtocolVersion.V5}
            with contextlib.suppress(aiomqtt.MqttError):  # it comes back, and drives us out
                async with aiomqtt.Client("127.0.0.1", mosquitto.port, **options):
                    await until(lambda: count(server, "mqtt_lost") >= 1)
            await until(lambda: up(server))
            await game.tell("end/of", "it")
            await until(lambda: game.about("end/of"))
            assert OFFLINE not in game.about(STATUS)
        await until(lambda: game.about(STATUS)[-1] == OFFLINE)  # said by itself, when it stops


async def test_who_vanishes_is_said_to_be_away_after_the_delay(mosquitto: Mosquitto) -> None:
    settings = settings_with(mqtt=bridged(mosquitto, will_delay_s=1))
    async with outsider(mosquitto) as game:
        with contextlib.suppress(aiomqtt.MqttError):
            async with choose_broker(settings).connect(lambda delivery: None) as connection:
                wire = connection._client._client.socket()  # type: ignore[attr-defined]
                wire.shutdown(socket.SHUT_RDWR)
                await until(lambda: OFFLINE in game.about(STATUS))
