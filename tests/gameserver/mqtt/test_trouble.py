"""The broker goes away, hangs, refuses, or has another client of our id: dialogue goes on, nothing
that was promised is lost, and it is said what is wrong.
"""

import contextlib
import signal
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from gameserver.doctor import Finding
from gameserver.settings import SettingsError
from tests.gameserver.mqtt.mosquitto import PROGRAM, Mosquitto
from tests.gameserver.mqtt.outsider import Outsider, outsider
from tests.gameserver.mqtt.test_world_events import REPLIES, bridged, count, subscribed, up
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving, settings_with, until
from tests.gameserver.test_doctor import look

SAID = f"scene/{SCENE}/npc/mira/said"


def texts(game: Outsider) -> list[str]:
    """What was said, each message once, however often it came."""
    found = {message["s"]: message["d"]["text"] for message in game.about(SAID)}
    return [found[s] for s in sorted(found)]


async def test_nothing_is_lost_while_the_broker_restarts(tmp_path: Path) -> None:
    if PROGRAM is None:
        pytest.skip("mosquitto is not installed")
    mosquitto = Mosquitto(tmp_path, persistent=True).start()
    try:
        async with outsider(mosquitto, session="game"):
            pass  # subscribed from now on
        async with serving(tmp_path, REPLIES, mqtt=bridged(mosquitto)) as server:
            ann = await Player.enter(server)
            await subscribed(server)
            await ann.hear("One.")
            mosquitto.end(signal.SIGTERM)
            await until(lambda: not up(server))
            assert [(await ann.hear(line))["text"] for line in ("Two.", "Three.")] == REPLIES[1:]
            mosquitto.start()
            async with outsider(mosquitto, session="game") as game:
                await until(lambda: len(texts(game)) == 3)
                assert texts(game) == REPLIES
                await subscribed(server)  # again: this broker keeps sessions, others do not
                await game.tell(f"scene/{SCENE}/event/bell", "back")
                await ann.get("world.event", data="back")
                await until(lambda: game.about(f"scene/{SCENE}/npc/mira/state"))
    finally:
        mosquitto.end()


async def test_events_of_a_short_absence_come_later_and_once(tmp_path: Path) -> None:
    if PROGRAM is None:
        pytest.skip("mosquitto is not installed")
    mosquitto = Mosquitto(tmp_path, persistent=True).start()
    try:
        slow = {"reconnect_s": 2.0, "reconnect_most_s": 2.0}
        async with serving(tmp_path, REPLIES, mqtt=bridged(mosquitto, **slow)) as server:
            ann = await Player.enter(server)
            await subscribed(server)
            mosquitto.end(signal.SIGTERM)
            await until(lambda: not up(server))
            mosquitto.start()
            async with outsider(mosquitto) as game:
                for _ in range(2):
                    await game.tell(f"scene/{SCENE}/event/bell", "missed", eid="e1")
                assert not up(server)
                await ann.get("world.event", data="missed")
                await until(lambda: count(server, "mqtt_dropped_in_duplicate") == 1)
    finally:
        mosquitto.end()


async def test_a_broker_that_hangs_is_noticed_and_dialogue_goes_on(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    quick = {"keepalive_s": 1, "timeout_s": 0.3}
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, REPLIES, mqtt=bridged(mosquitto, **quick)) as server,
    ):
        ann = await Player.enter(server)
        await subscribed(server)
        mosquitto.send(signal.SIGSTOP)
        assert (await ann.hear("One."))["text"] == REPLIES[0]
        await until(lambda: not up(server))
        assert (await ann.hear("Two."))["text"] == REPLIES[1]
        mosquitto.send(signal.SIGCONT)
        await until(lambda: texts(game) == REPLIES[:2])


async def test_somebody_else_with_our_id_is_named_and_a_crash_publishes_the_will(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, REPLIES, mqtt=bridged(mosquitto)) as server,
    ):
        options = {"identifier": "troupe-troupe", "protocol": aiomqtt.ProtocolVersion.V5}
        for times in range(1, 4):
            await until(lambda: up(server))
            with contextlib.suppress(aiomqtt.MqttError):  # we come back, and drive it out
                async with aiomqtt.Client("127.0.0.1", mosquitto.port, **options):
                    await until(lambda: count(server, "mqtt_lost") >= times)  # noqa: B023
        assert count(server, "mqtt_brief") == 1
        await until(lambda: {"online": False} in game.about("node/troupe/status"))
        await until(lambda: game.about("node/troupe/status")[-1] == {"online": True})
    async with outsider(mosquitto) as game:  # who stops in good order says so itself
        await until(lambda: game.about("node/troupe/status") == [{"online": False}])


async def test_a_login_comes_from_a_file_and_a_wrong_one_keeps_nobody_from_talking(
    tmp_path: Path,
) -> None:
    if PROGRAM is None:
        pytest.skip("mosquitto is not installed")
    mosquitto = Mosquitto(tmp_path, login="troupe:s3:cret").start()
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("troupe:s3:cret\n")
    wrong.write_text("troupe:guess\n")
    try:
        known = bridged(mosquitto, login_file=str(right))
        async with serving(tmp_path / "a", REPLIES, mqtt=known) as server:
            await until(lambda: up(server))
        unknown = bridged(mosquitto, login_file=str(wrong))
        async with serving(tmp_path / "b", REPLIES, mqtt=unknown) as server:
            ann = await Player.enter(server)
            await until(lambda: count(server, "mqtt_lost") >= 2)
            assert (await ann.hear())["text"] == REPLIES[0]
            assert not up(server)
    finally:
        mosquitto.end()


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://broker"},
        {"url": "mqtt://ann:secret@broker"},
        {"url": "mqtt://broker", "login_file": "/nowhere/at/all"},
        {"url": "mqtt://broker", "login_variable": "NO_SUCH_VARIABLE"},
    ],
)
async def test_settings_that_cannot_work_are_named_at_the_start(
    tmp_path: Path, wrong: dict[str, str]
) -> None:
    with pytest.raises(SettingsError, match=r"mqtt\.") as refused:
        async with serving(tmp_path, REPLIES, mqtt=wrong):
            pass
    assert "secret" not in str(refused.value)


def test_the_doctor_asks_the_broker(tmp_path: Path, mosquitto: Mosquitto) -> None:
    def found(**mqtt: Any) -> Finding:
        return look(tmp_path, settings_with(console_port=0, mqtt=mqtt))["broker"]

    assert found(url=mosquitto.url).state == "ok"
    wrong = found(url="mqtt://ann:secret@broker")
    assert wrong.state == "broken"
    assert "login_file" in wrong.found
    mosquitto.end()
    gone = found(url=mosquitto.url)
    assert gone.state == "missing"
    assert mosquitto.url in gone.fix
