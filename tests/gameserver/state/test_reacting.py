"""Another value of a thing moves feelings, quests and tongues: of those who are near it, and within
bounds, whoever answers whom."""

from pathlib import Path
from typing import Any

import pytest

from gameserver.commands import StateWrite
from gameserver.game import GameServer
from gameserver.newsroom import TELLER
from gameserver.scene_actor import SceneActor
from gameserver.state.registers import Item
from tests.gameserver.nonsense import serving_nonsense
from tests.gameserver.player import Player
from tests.gameserver.stage import PEOPLE, SCENE, serving, until
from tests.gameserver.state.conftest import QUICK
from tests.gameserver.state.walker import THINGS, Walker
from tests.npc.quests.packs import QUEST, write
from tests.npc.quests.packs import SCENE as QUEST_SCENE

OPENS = "The door swings open."
REPLIES = ["Shut that door!", "The stew is hot.", "Mind the cat."]
NEWS = [{"thing": "door.open", "with": {"is": True}, "text": OPENS, "wakes": "mira"}]
FEARS = [{"id": "draught", "thing": "door.open", "mood": "afraid", "trust": -5, "strength": 90}]
PACK: dict[str, Any] = {**THINGS, "news": NEWS, "reactions": FEARS}
FAR = (90, 90)


def actor(server: GameServer) -> SceneActor:
    return server._world.actors[SCENE]


def knows(server: GameServer, npc: str, text: str = OPENS) -> bool:
    """Whether an NPC has heard some news."""
    lines = actor(server).ensemble.floor(npc).dialogue.newest(50)
    return any(line.name == TELLER and line.text == text for line in lines)


def mood(server: GameServer, npc: str = "mira") -> str:
    return actor(server).ensemble.floor(npc).dialogue.feelings.mood.at(0).name


def turns(player: Player) -> int:
    return player.types().count("npc.turn.start")


def put(server: GameServer, value: Any, e: str = "door", k: str = "open", **more: Any) -> None:
    server._journal.begin()
    actor(server).state.put([StateWrite(e, k, value)], **more)


async def test_a_door_that_opens_wakes_an_npc_and_all_know_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path, REPLIES, pack=PACK, state=QUICK, inspect=True) as server:
        ann = await Walker.enter(server)
        await ann.put("door", "open", True)
        start = (await ann.get("npc.turn.start", npc="mira"))["d"]
        await ann.get("npc.turn.end", turn=start["turn"], text=REPLIES[0])
        assert OPENS in server.prompts[start["turn"]].text
        assert knows(server, "mira") and knows(server, "harn")
        assert mood(server) == mood(server, "harn") == "afraid"
        assert actor(server).ensemble.relation("mira", "ann")["trust"] == -5


@pytest.mark.parametrize("way", ["same", "shuts", "retained", "stale", "started", "1"])
async def test_what_is_no_such_change_is_no_news(tmp_path: Path, way: str) -> None:
    pack = PACK
    if way == "started":  # it is open as the scene begins
        door = {**THINGS["entities"][0], "keys": {"open": True, "lock": "iron"}}
        pack = {**PACK, "entities": [door]}
    async with serving(tmp_path, REPLIES, pack=pack, state=QUICK) as server:
        ann = await Walker.enter(server)
        state = actor(server).state
        match way:
            case "same":
                put(server, True, quiet=True)
                put(server, True)
            case "shuts":
                put(server, True, quiet=True)
                put(server, False)
            case "retained":
                newest = Item("door", "open", True, state._clock.tick(), "desk")
                assert state.apply([newest], quiet=True)
            case "stale":
                put(server, False, k="lock")
                put(server, 7, quiet=True)
                assert not state.apply([Item("door", "open", True, 1, "desk")])
            case "1":
                put(server, 1)
        await ann.quiet()
        assert turns(ann) == 0
        assert not knows(server, "mira")


async def test_it_is_between_those_who_are_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mira is at the door and Harn far away; so are Ann and Bob. Nobody sees in Mira's face what
    Bob could not see."""
    places = {"mira": [2, 7], "harn": list(FAR)}
    people = [{**person, "at": places[person["id"]]} for person in PEOPLE]
    monkeypatch.setattr("tests.gameserver.stage.PEOPLE", people)
    wind = {"thing": "door.open", "text": "Wind from the door.", "wakes": "harn"}
    news = [*NEWS, wind]
    pack = {**PACK, "news": news, "hearing": 10}
    async with serving(tmp_path, REPLIES, pack=pack, state=QUICK) as server:
        ann, bob = await Walker.enter(server), await Walker.enter(server, "bob")
        await ann.put("ann", "pos", [3, 7])
        await bob.put("bob", "pos", list(FAR))
        await ann.put("door", "open", True)
        start = (await ann.get("npc.turn.start"))["d"]
        assert (start["npc"], start["to"]) == ("mira", ["ann"])
        await ann.get("npc.turn.end", turn=start["turn"], text=REPLIES[0])
        await bob.quiet()
        assert turns(bob) == 0 and turns(ann) == 1
        assert "harn" not in actor(server).floors
        assert knows(server, "mira") and not knows(server, "harn")
        assert mood(server) == mood(server, "harn") == "neutral"
        page = (await bob.ask("history.get", {}))["d"]["items"]
        assert not page
        assert actor(server).ensemble.relation("mira", "ann")["trust"] == -5
        assert actor(server).ensemble.relation("harn", "ann")["trust"] == 0


async def test_who_pulls_a_lever_from_afar_is_not_known_and_wakes_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path, REPLIES, pack={**PACK, "hearing": 10}, state=QUICK) as server:
        ann = await Walker.enter(server)
        await ann.put("ann", "pos", list(FAR))
        await ann.put("door", "open", True)
        await ann.quiet()
        assert turns(ann) == 0
        assert actor(server).ensemble.relation("mira", "ann")["trust"] == 0
        assert not knows(server, "mira"), "who could be told of it has not seen it"


async def test_a_thing_that_changes_all_the_time_is_noticed_now_and_then(tmp_path: Path) -> None:
    quick = {**QUICK, "noticed_burst": 3, "noticed_per_s": 0.001}
    async with serving(tmp_path, REPLIES, pack=PACK, state=quick) as server:
        ann = await Walker.enter(server)
        for number in range(100):
            put(server, number % 2 == 0)
        await until(lambda: server.gauges().get("state_unnoticed") == 97)
        await ann.get("npc.turn.end")
        await ann.quiet()
        assert turns(ann) == 1, "the cooldown of the news"
        put(server, True, k="lock")  # nobody cares
        assert server.gauges()["state_unnoticed"] == 97


async def test_a_ring_of_npcs_who_answer_each_others_doings_ends(tmp_path: Path) -> None:
    """Mira's words open the door, Harn's shut it, as a game might do it: for ever, if their author
    has given no cooldown."""
    ring = [
        {**NEWS[0], "cooldown_s": 0},
        {**NEWS[0], "with": {"is": False}, "wakes": "harn", "cooldown_s": 0},
    ]
    free = {**QUICK, "noticed_burst": 1000}
    flow = {"wakes_per_minute": 6}
    pack = {**PACK, "news": ring}
    async with serving(tmp_path, REPLIES, pack=pack, state=free, flow=flow, step_ms=0.1) as server:
        ann = await Walker.enter(server)
        put(server, True)
        ended = 0
        while not server.gauges().get("news_slept_through"):
            end = await ann.get("npc.turn.end")
            ended += 1
            put(server, end["d"]["npc"] == "harn")
        assert 6 <= ended <= 8  # six at once, and what a slow machine takes so long for
        await ann.quiet()
        assert turns(ann) == ended


async def test_a_thing_that_is_moved_is_news_too(tmp_path: Path) -> None:
    moved = "The cart rolls off."
    pack = {
        **THINGS,
        "entities": [*THINGS["entities"], {"id": "cart", "at": [5, 5]}],
        "news": [{"thing": "cart.pos", "text": moved}],
    }
    async with serving(tmp_path, REPLIES, pack=pack, state=QUICK) as server:
        await Walker.enter(server)
        put(server, [5, 5], e="cart", k="pos")
        assert not knows(server, "mira", moved)
        put(server, [6, 5], e="cart", k="pos")
        assert knows(server, "mira", moved)


async def test_quests_go_on_when_things_are_as_they_wait_for(tmp_path: Path) -> None:
    scene = (
        f"{QUEST_SCENE}entities: [{{id: door, keys: {{open: false}}, write: {{open: player}}}}]\n"
    )
    quest = QUEST.replace(
        "{to: gone, on: {event: accepted}}", "{to: gone, when: {things: {door.open: true}}}"
    )
    async with serving_nonsense(write(tmp_path / "pack", quest, scene), state=QUICK) as server:
        ann = await Walker.enter(server)
        await ann.put("door", "open", True)
        await ann.get("quest.update", stage="gone")
