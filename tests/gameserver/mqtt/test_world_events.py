"""Through a real broker: what happens in the world reaches scenes, and what NPCs do goes out."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from gameserver.game import GameServer
from gameserver.messages import NpcAction
from tests.gameserver.mqtt.mosquitto import Mosquitto
from tests.gameserver.mqtt.outsider import outsider
from tests.gameserver.nonsense import serving_nonsense
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving, until
from tests.npc.quests.packs import write

STORM = "A storm breaks over the ford."
PACK: dict[str, Any] = {
    "meta": {"weather": "rain", "gate": True},
    "news": [{"event": "storm", "with": {"near": True}, "text": STORM, "wakes": "mira"}],
}
REPLIES = ["Close the shutters!", "The stew is hot.", "Mind the cat."]


def bridged(mosquitto: Mosquitto, **more: Any) -> dict[str, Any]:
    quick = {"reconnect_s": 0.05, "reconnect_most_s": 0.1, "timeout_s": 1.0, "will_delay_s": 0}
    return {"url": mosquitto.url, **quick, **more}


def up(server: GameServer) -> bool:
    return bool(server.gauges()["mqtt_up"])


def count(server: GameServer, name: str) -> float:
    return server.gauges().get(name, 0)


async def subscribed(server: GameServer, scene: str = SCENE) -> None:
    bridge = server._bridge
    assert bridge is not None
    await until(lambda: bridge.up and scene in bridge._subscribed)
    await asyncio.sleep(0.05)  # the broker's answer


async def test_an_event_reaches_players_wakes_an_npc_and_what_it_says_goes_out(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, REPLIES, pack=PACK, inspect=True, mqtt=bridged(mosquitto)) as server,
    ):
        ann = await Player.enter(server)
        await subscribed(server)
        await game.tell(f"scene/{SCENE}/event/storm", {"near": True})
        event = await ann.get("world.event")
        assert event["d"] == {
            "name": "storm",
            "data": {"near": True},
            "src": "mqtt",
            "state": False,
        }
        start = await ann.get("npc.turn.start", npc="mira")
        end = (await ann.get("npc.turn.end", turn=start["d"]["turn"]))["d"]
        assert (end["status"], end["text"]) == ("completed", REPLIES[0])
        await until(lambda: game.about(f"scene/{SCENE}/npc/mira/said"))
        (said,) = game.about(f"scene/{SCENE}/npc/mira/said")
        assert (said["t"], said["st"], said["d"]["text"]) == ("npc.turn.end", SCENE, REPLIES[0])
        await until(lambda: game.about(f"scene/{SCENE}/npc/mira/state"))
        lines = server._world.actors[SCENE].floors["mira"].dialogue.newest(10)
        assert [(line.kind, line.text) for line in lines] == [
            ("observed", STORM),
            ("npc", REPLIES[0]),
        ]


async def test_a_second_delivery_is_one_event_and_each_instance_has_its_own(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, REPLIES, mqtt=bridged(mosquitto)) as server,
    ):
        ann = await Player.enter(server)
        bob = await Player.enter(server, "bob", instance="cellar")
        await subscribed(server)
        await subscribed(server, f"{SCENE}.cellar")
        for eid in ("e1", "e1", "e2"):
            await game.tell(f"scene/{SCENE}/event/bell", {"of": eid}, eid=eid)
        await game.tell(f"scene/{SCENE}/event/bell", {"eid": "e3"})
        await game.tell(f"scene/{SCENE}/event/bell", {"eid": "e3"})
        await game.tell(f"scene/{SCENE}.cellar/event/rats")
        await bob.get("world.event", name="rats", data=None)
        await until(lambda: count(server, "mqtt_dropped_in_duplicate") == 2)
        await ann.quiet()
        heard = [m["d"]["data"] for m in ann.log if m["t"] == "world.event"]
        assert heard == [{"of": "e1"}, {"of": "e2"}, {"eid": "e3"}]


async def test_what_the_broker_retains_is_how_things_are_and_makes_nobody_speak(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with outsider(mosquitto) as game:
        await game.tell(f"scene/{SCENE}/state/weather", "snow", retain=True)
        await game.tell(f"scene/{SCENE}/state/gold", 7, retain=True)  # the pack has no such fact
        await game.tell(f"scene/{SCENE}/event/storm", {"near": True}, retain=True)
        async with serving(tmp_path, REPLIES, pack=PACK, mqtt=bridged(mosquitto)) as server:
            ann = await Player.enter(server)
            event = (await ann.get("world.event"))["d"]
            assert event == {"name": "weather", "data": "snow", "src": "mqtt", "state": True}
            assert (await ann.get("scene.meta"))["d"]["weather"] == "snow"
            await until(lambda: count(server, "mqtt_dropped_in_retained") == 1)
            assert count(server, "mqtt_dropped_in_forbidden") == 1
            story = server._world.actors[SCENE].plot.story
            assert story.state("mira", "ann").world == {"weather": "snow", "gate": True}
            await game.tell(f"scene/{SCENE}/state/gate", False)
            await ann.get("world.event", name="gate", data=False)
            await game.tell(f"scene/{SCENE}/state/weather", b"", retain=True)
            await ann.get("world.event", name="weather", data="rain")
            await ann.quiet()
            assert "npc.turn.start" not in ann.types()


BAD = {
    "too_large": b'"' + b"x" * (1 << 15) + b'"',
    "bad_json": b"{'near': 1}",
    "too_deep": b"[" * 40 + b"]" * 40,
    "bad_field": b'{"n": 99999999999999999999}',
}


async def test_bad_payloads_are_counted_and_harm_nothing(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, REPLIES, mqtt=bridged(mosquitto)) as server,
    ):
        ann = await Player.enter(server)
        await subscribed(server)
        for payload in (*BAD.values(), b"\xff\xfe", b'{"a":1,"a":2}', b"NaN"):
            await game.tell(f"scene/{SCENE}/event/bell", payload)
        await game.tell(f"scene/{SCENE}/event/two words", 1)
        await game.tell(f"scene/{SCENE}/state/weather", {"is": "rain"})
        await game.tell(f"scene/{SCENE}/event/bell", "good")
        await ann.get("world.event", data="good")
        assert ann.types().count("world.event") == 1
        for cause in (*BAD, "topic", "bad_value"):
            assert count(server, f"mqtt_dropped_in_{cause}") == (
                3 + 1 if cause == "bad_json" else 1
            )


async def test_whispers_stay_in_the_game_and_actions_leave_it(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, REPLIES, mqtt=bridged(mosquitto)) as server,
    ):
        ann = await Player.enter(server)
        await subscribed(server)
        await ann.hear("Psst.", to=["ann"])
        await ann.hear("Hello!")
        wave = NpcAction("t-1", "a-1", "wave", {}, 0, "mira", "ann")
        server._world.actors[SCENE].stream.append("npc.action", wave)
        await until(lambda: game.about(f"scene/{SCENE}/npc/mira/action"))
        said = game.about(f"scene/{SCENE}/npc/mira/said")
        assert [message["d"]["text"] for message in said] == [REPLIES[1]]
        assert game.about(f"scene/{SCENE}/npc/mira/action")[0]["d"]["name"] == "wave"


async def test_a_world_event_moves_everybodys_quests_once(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with (
        outsider(mosquitto) as game,
        serving_nonsense(write(tmp_path / "pack"), mqtt=bridged(mosquitto)) as server,
    ):
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        await subscribed(server)
        await game.tell(f"scene/{SCENE}/event/accepted")
        for player in (ann, bob):
            await player.get("quest.update", stage="gone")
        await game.tell(f"scene/{SCENE}/event/accepted")
        await ann.quiet()
        assert ann.types().count("quest.update") == 1


async def test_a_node_without_settings_for_it_imports_nothing_of_it() -> None:
    probe = "import sys, gameserver.game, gameserver.app; print('aiomqtt' in sys.modules)"
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", probe, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await done.communicate()
    assert out.strip() == b"False"
