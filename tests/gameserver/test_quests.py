"""Quests over real sockets: the game moves them, all players concerned are told, and a model that
talks nonsense can neither stop nor hurry them.
"""

from pathlib import Path
from typing import Any

import pytest

from gameserver.game import GameServer
from scenes.document import PackError
from tests.gameserver.nonsense import serving_nonsense
from tests.gameserver.player import Player
from tests.npc.quests.packs import GRIFFIN, QUEST, write

LIGHT = "light_in_the_mill"


async def enter(server: GameServer, name: str, **wish: Any) -> Player:
    return await Player.enter(server, name, scene="gilded_griffin", **wish)


async def event(player: Player, name: str, **data: Any) -> None:
    assert (await player.ask("world.event", {"name": name, "data": data}))["t"] == "ack"


async def stage(player: Player) -> Any:
    """Where the quest is, as a player who looks again sees it."""
    view = await player.ask("scene.join", {"scene": "gilded_griffin"})
    (quest,) = view["d"]["quests"]
    return quest


def updates(player: Player) -> list[Any]:
    return [m["d"] for m in player.log if m["t"] == "quest.update"]


async def chat(player: Player, npc: str = "harn") -> Any:
    """Talk to somebody and refuse whatever is done, as a game may."""
    end = await player.hear("I will find Robin.", npc=npc)
    assert npc != "harn" or "[" not in end["text"]
    for action in end["actions"]:
        done = {"turn": end["turn"], "action": action["action"], "ok": False}
        assert (await player.ask("action.result", done))["t"] == "ack"
    return end


async def test_two_clients_play_the_demo_quest_to_its_good_end_on_nonsense() -> None:
    async with serving_nonsense(GRIFFIN) as server:
        ann, bob = await enter(server, "ann"), await enter(server, "bob")
        assert (await stage(ann))["stage"] == "asked"
        ends = [await chat(ann), await chat(bob), await chat(ann)]
        offered = [action["name"] for end in ends for action in end["actions"]]
        assert set(offered) <= {"start_quest"}  # the lantern is not for those who have not agreed
        await event(ann, "quest_accepted")
        update = (await bob.get("quest.update"))["d"]
        assert (update["quest"], update["stage"], update["rewards"]) == (LIGHT, "searching", [])
        lantern = (await bob.get("npc.action", npc="harn", name="give_item"))["d"]
        assert (lantern["args"], lantern["player"]) == ({"item": "lantern"}, "ann")
        done = {"turn": lantern["turn"], "action": lantern["action"], "ok": True}
        assert (await ann.ask("action.result", done))["t"] == "ack"
        ends = [await chat(bob), await chat(ann), await chat(ann, "mira")]
        offered += [action["name"] for end in ends for action in end["actions"]]
        await event(bob, "robin_found", place="river")  # not where he is
        assert (await stage(bob))["stage"] == "searching"
        await event(bob, "robin_found", place="mill")
        assert (await ann.get("quest.update", stage="found"))["st"] == "gilded_griffin"
        await event(bob, "robin_home")  # without the whistle nobody believes it
        assert (await stage(bob))["stage"] == "found"
        await bob.ask("context.set", {"items": [{"k": "item.whistle", "v": 1}]})
        await event(bob, "robin_home")
        end = (await ann.get("quest.update", stage="home"))["d"]
        assert end["ending"] == "good"
        assert end["rewards"] == [{"item": "silver", "count": 20}]
        await chat(bob)
        await event(ann, "robin_abandoned")  # it is over
        assert (await stage(ann))["ending"] == "good"
        assert [u["stage"] for u in updates(ann)] == ["searching", "found", "home"]
        assert updates(ann) == updates(bob)
        assert offered, "the model never acted, so nothing was shown"


async def test_the_bad_end_and_time_that_runs_out() -> None:
    async with serving_nonsense(GRIFFIN) as server:
        ann = await enter(server, "ann")
        await event(ann, "quest_accepted")
        story = server._world.actors["gilded_griffin"].plot.story
        now = story.clock()
        story.clock = lambda: now + 3599
        server._world.forget_idle()
        assert (await stage(ann))["stage"] == "searching"
        story.clock = lambda: now + 3600
        server._world.forget_idle()
        end = (await ann.get("quest.update", stage="lost"))["d"]
        assert (end["ending"], end["rewards"]) == ("bad", [{"item": "silver", "count": 5}])


async def test_a_quest_begins_by_the_action_of_its_giver_once_the_game_agrees() -> None:
    async with serving_nonsense(GRIFFIN) as server:
        ann = await enter(server, "ann")
        for _ in range(30):
            end = await ann.hear("Do you have work for me?", npc="harn")
            if end["actions"]:  # the first of them counts; noise may ask for the same again
                action = end["actions"][0]
                assert action["name"] == "start_quest"
                assert (await stage(ann))["stage"] == "asked"
                done = {"turn": end["turn"], "action": action["action"], "ok": True}
                await ann.ask("action.result", done)
                break
        assert (await stage(ann))["stage"] == "searching"


async def test_instances_are_at_stages_of_their_own() -> None:
    async with serving_nonsense(GRIFFIN) as server:
        ann = await enter(server, "ann", instance="one")
        bob = await enter(server, "bob", instance="two")
        await event(ann, "quest_accepted")
        view = await bob.ask("scene.join", {"scene": "gilded_griffin", "instance": "two"})
        assert view["d"]["quests"][0]["stage"] == "asked"
        assert "quest.update" not in bob.types()


@pytest.mark.parametrize("name", ["quest_begun", "light_in_the_mill"])
async def test_players_cannot_name_events_that_the_scene_does_not_list(name: str) -> None:
    async with serving_nonsense(GRIFFIN) as server:
        ann = await enter(server, "ann")
        refused = await ann.ask("world.event", {"name": name})
        assert refused["d"]["code"] == "forbidden"
        assert (await stage(ann))["stage"] == "asked"


async def test_a_quest_of_each_player_is_nobody_elses_business(tmp_path: Path) -> None:
    async with serving_nonsense(write(tmp_path)) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        await event(ann, "accepted")
        update = await ann.get("quest.update")
        assert (update["st"], update["d"]["scene"], update["d"]["stage"]) == ("me", "inn", "gone")
        assert "quest.update" not in bob.types()
        view = await bob.ask("scene.join", {"scene": "inn"})
        assert view["d"]["quests"][0]["stage"] == "asked"
        view = await ann.ask("scene.join", {"scene": "inn"})
        assert view["d"]["quests"][0]["stage"] == "gone"


async def test_players_keep_their_stage_in_a_new_version_and_a_broken_one_changes_nothing(
    tmp_path: Path,
) -> None:
    async with serving_nonsense(write(tmp_path)) as server:
        ann, cast = await Player.enter(server), server._world._cast
        await event(ann, "accepted")
        await ann.get("quest.update", stage="gone")
        file = tmp_path / "quests" / "mill.yaml"
        file.write_text(QUEST.replace("The Mill", "The Old Mill"), "utf-8")
        assert (await cast.reload(tmp_path, server.adopt)).what == "changed"
        file.write_text(QUEST.replace("to: lost}", "to: nowhere}"), "utf-8")
        with pytest.raises(PackError, match="no stage"):
            await cast.reload(tmp_path, server.adopt)
        (quest,) = (await ann.ask("scene.join", {"scene": "inn"}))["d"]["quests"]
        assert (quest["title"], quest["stage"]) == ("The Old Mill", "gone")
        file.write_text(QUEST.replace("gone", "away"), "utf-8")
        await cast.reload(tmp_path, server.adopt)
        assert (await ann.get("quest.update"))["d"]["stage"] == "asked"
