"""Results of actions and the world state, through a real broker."""

import json
from pathlib import Path
from typing import Any

from gameserver.game import GameServer
from gameserver.state.registers import Item
from tests.gameserver.mqtt.mosquitto import Mosquitto
from tests.gameserver.mqtt.outsider import ROOT, Outsider, outsider
from tests.gameserver.mqtt.test_world_events import bridged, count, subscribed
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving, until
from tests.gameserver.state.walker import THINGS, Walker
from tests.gameserver.test_actions import ROPE, acting, story

DOOR = f"scene/{SCENE}/entity/door/open"


async def test_another_system_says_once_what_became_of_an_action(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    mqtt = bridged(mosquitto)
    async with (
        outsider(mosquitto) as game,
        acting(tmp_path, f"Take it. {ROPE}", mqtt=mqtt) as server,
    ):
        ann = await Player.enter(server)
        await subscribed(server)
        (done,) = (await ann.hear())["actions"]
        action, topic = done["action"], f"scene/{SCENE}/npc/mira/action"
        await until(lambda: game.about(topic))
        asked = next(m for m in game.heard if str(m.topic) == f"{ROOT}/{topic}")
        properties: Any = asked.properties
        assert properties.ResponseTopic == f"{ROOT}/scene/{SCENE}/result/{action}"
        assert properties.CorrelationData == action.encode()

        answers = properties.ResponseTopic.removeprefix(f"{ROOT}/")
        for bad in (b"no", b'{"ok":"maybe"}', b"[]"):
            await game.tell(answers, bad)
        await game.tell(f"scene/{SCENE}/result/a-none", {"ok": True})
        await until(lambda: count(server, "mqtt_dropped_in_no_turn") == 1)
        assert count(server, "mqtt_dropped_in_bad_json") == 1
        assert count(server, "mqtt_dropped_in_bad_value") == 2
        (deed,) = story(server)._repertoires["mira"]._deeds
        assert deed.outcome == "waiting"

        for _ in range(2):
            await game.tell(answers, {"ok": False, "data": {"reason": "too heavy"}})
        await until(lambda: count(server, "mqtt_dropped_in_duplicate") == 1)
        (deed,) = story(server)._repertoires["mira"]._deeds
        assert (deed.outcome, deed.reason) == ("refused", "too heavy")
        late = await ann.ask("action.result", {"turn": "t", "action": action, "ok": True})
        assert late["d"]["code"] == "no_turn", "the first one counts"


def door(game: Outsider) -> list[Any]:
    return [told["v"] for told in game.about(DOOR) if told is not None]


def held(server: GameServer) -> Item:
    register = server._world.actors[SCENE].state.registers.get("door", "open")
    assert register is not None
    return register.item


async def test_state_goes_out_as_retained_values_and_comes_in_by_its_stamps(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    mqtt = bridged(mosquitto, state_s=0.01)
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, ["x"], pack=THINGS, mqtt=mqtt) as server,
    ):
        ann = await Walker.enter(server)
        await subscribed(server)
        await ann.put("door", "open", True)
        await until(lambda: door(game)[-1:] == [True])
        async with outsider(mosquitto) as late:
            await until(lambda: door(late) == [True])

        known = held(server)
        stale = {"v": False, "h": known.h - 4096, "o": "other"}
        newer = {"v": False, "h": known.h + 4096, "o": "other"}
        for item in (newer, stale, newer):
            await game.tell(DOOR, item, retain=True)
        await ann.knows("door", "open", False)
        await until(lambda: count(server, "mqtt_in") >= 3)
        await game.tell(f"scene/{SCENE}/event/bell")  # all before it has been taken
        await ann.get("world.event", name="bell")
        assert (held(server).v, held(server).h, held(server).o) == (False, newer["h"], "other")

        await game.tell(DOOR, {"v": True})  # without a stamp it is given one, and told
        await ann.knows("door", "open", True)
        await until(lambda: game.about(DOOR)[-1].get("o") == "troupe")
        mine = [m for m in game.about(DOOR) if m and m.get("o") == "other"]
        assert len(mine) == 3, "what came from the broker does not go back there"

        for wrong in ({"v": 1, "h": -1}, {"v": 1, "h": 2**53}, {"open": True}, 7):
            await game.tell(DOOR, wrong)
        await game.tell(f"scene/{SCENE}/entity/nowhere/open", {"v": 1})
        await until(lambda: count(server, "mqtt_dropped_in_forbidden") == 1)
        assert held(server).v is True


async def test_what_is_removed_leaves_nothing_with_the_broker(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    mqtt = bridged(mosquitto, state_s=0.01)
    async with (
        outsider(mosquitto) as game,
        serving(tmp_path, ["x"], pack=THINGS, mqtt=mqtt) as server,
    ):
        ann = await Walker.enter(server)
        await subscribed(server)
        await ann.walk(2, 2)
        topic = f"scene/{SCENE}/entity/ann/pos"
        await until(lambda: [m["v"] for m in game.about(topic)][-1:] == [[2, 2]])
        await ann.ask("scene.leave", {})
        await until(lambda: game.about(topic)[-1] is None)
        assert game.about(topic)[-2]["v"] is None
        async with outsider(mosquitto) as late:
            await until(lambda: door(late))
            assert not late.about(topic)


async def test_what_the_broker_has_without_a_stamp_is_not_news_each_time(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    async with outsider(mosquitto) as game:
        await game.tell(DOOR, {"v": True}, retain=True)
        mqtt = bridged(mosquitto, state_s=0.01)
        async with serving(tmp_path, ["x"], pack=THINGS, mqtt=mqtt) as server:
            ann = await Walker.enter(server)
            await ann.knows("door", "open", True)  # at the first time it is all that is known
            await until(lambda: door(game)[-1] is True and "h" in json.dumps(game.about(DOOR)[-1]))
            await game.tell(DOOR, {"v": True}, retain=True)
            await ann.put("door", "open", False)
            await until(lambda: door(game)[-1] is False)
            assert held(server).v is False
