"""Coming, going and being there: snapshots, presence, instances, roles."""

import asyncio
from pathlib import Path

import pytest

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import GREETING, SCENE, serving, until


async def test_joined_shows_the_scene_with_the_joiner_in_it(server: GameServer) -> None:
    ann = await Player.enter(server)
    joined = ann.log[-1]
    assert (joined["t"], joined["st"], joined["s"]) == ("scene.joined", SCENE, 1)
    assert joined["ep"] > 0
    body = joined["d"]
    assert body["players"] == [{"id": "ann", "name": "ann", "state": "present", "role": "player"}]
    assert [npc["id"] for npc in body["npcs"]] == ["mira", "harn"]
    assert body["npcs"][1]["quest_giver"] is True
    assert body["npcs"][0]["activity"] == "idle"
    assert body["turns"] == []
    assert body["meta"]["title"] == "The Inn"
    assert body["meta"]["weather"] == "rain"
    assert "gap" not in body


async def test_joining_twice_shows_it_again_and_announces_nothing(server: GameServer) -> None:
    ann = await Player.enter(server)
    bob = await Player.enter(server, "bob")
    again = await bob.ask("scene.join", {"scene": SCENE, "greet": True})
    assert again["t"] == "scene.joined"
    assert again["s"] == 2
    assert [player["id"] for player in again["d"]["players"]] == ["ann", "bob"]
    await ann.ask("heartbeat")
    assert ann.types().count("presence") == 1
    assert "npc.turn.start" not in ann.types()


async def test_presence_tells_who_comes_and_goes(server: GameServer) -> None:
    ann = await Player.enter(server)
    bob = await Player.enter(server, "bob")
    left = await bob.ask("scene.leave", {"scene": SCENE}, st=None)
    assert (left["t"], left["st"], left["d"]) == ("scene.left", SCENE, {})
    came, went = await ann.get("presence"), await ann.get("presence")
    assert (came["d"]["changes"][0]["what"], came["s"]) == ("join", 2)
    assert (went["d"]["changes"][0]["what"], went["s"]) == ("leave", 3)
    refused = await bob.say()
    assert refused["d"]["code"] == "not_in_scene"


async def test_a_player_with_two_sessions_comes_once_and_goes_once(server: GameServer) -> None:
    ann = await Player.enter(server)
    first = await Player.enter(server, "bob")
    second = await Player.enter(server, "bob")
    assert len(second.log[-1]["d"]["players"]) == 2
    await first.send("bye")
    assert await first.closed() == 1000
    await second.send("bye")
    assert await second.closed() == 1000
    await ann.get("presence")
    await ann.get("presence")
    changes = [m["d"]["changes"][0]["what"] for m in ann.log if m["t"] == "presence"]
    assert changes == ["join", "leave"]


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"scene": "moon"}, "no_scene"),
        ({"scene": "inn", "instance": "x" * 62}, "bad_field"),
        ({"scene": "inn", "instance": "a/b"}, "bad_field"),
        ({"scene": "inn", "role": "king"}, "bad_field"),
        ({}, "bad_field"),
    ],
)
async def test_refused_joins(server: GameServer, wish: dict[str, str], code: str) -> None:
    ann = await Player.dial(server)
    await ann.identify()
    assert (await ann.ask("scene.join", wish))["d"]["code"] == code


async def test_an_instance_is_a_scene_of_its_own(server: GameServer) -> None:
    ann = await Player.enter(server)
    bob = await Player.enter(server, "bob", instance="party-7")
    assert bob.stream == f"{SCENE}.party-7"
    assert [player["id"] for player in bob.log[-1]["d"]["players"]] == ["bob"]
    await bob.say("Secret plans")
    await bob.get("npc.turn.end")
    await ann.ask("heartbeat")
    assert {"player.said", "npc.turn.start", "presence"}.isdisjoint(ann.types())
    cy = await Player.enter(server, "cy", instance="party-7")
    assert len(cy.log[-1]["d"]["players"]) == 2
    left = await bob.ask("scene.leave", {"scene": SCENE, "instance": "party-7"}, st="me")
    assert left["st"] == f"{SCENE}.party-7"


async def test_a_pack_may_forbid_instances(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], pack={"instances": False}) as server:
        ann = await Player.enter(server)
        refused = await ann.ask("scene.join", {"scene": SCENE, "instance": "mine"})
        assert refused["d"]["code"] == "forbidden"


async def test_scenes_per_session_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], limits={"scenes_per_session": 2}) as server:
        ann = await Player.enter(server)
        assert (await ann.ask("scene.join", {"scene": SCENE, "instance": "a"}))[
            "t"
        ] == "scene.joined"
        third = await ann.ask("scene.join", {"scene": SCENE, "instance": "b"})
        assert third["d"]["limit"] == 2
        assert server.gauges()["scenes"] == 2
        ambiguous = await ann.ask("say", {"text": "hi"}, st="me")
        assert ambiguous["d"]["code"] == "bad_field"
        wrong = await ann.ask("say", {"text": "hi"}, st=f"{SCENE}.b")
        assert wrong["d"]["code"] == "no_scene"


async def test_a_full_scene_refuses(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], limits={"players_per_scene": 1}) as server:
        await Player.enter(server)
        bob = await Player.enter(server, "bob")
        assert bob.log[-1]["d"]["code"] == "busy"


async def test_observers_watch_and_may_do_nothing(server: GameServer) -> None:
    ann = await Player.enter(server)
    owl = await Player.enter(server, "owl", role="observer")
    assert (await ann.get("presence"))["d"]["changes"][0]["meta"]["role"] == "observer"
    for t, d in [
        ("say", {"npc": "mira", "text": "x"}),
        ("observe", {"text": "x"}),
        ("npc.interrupt", {"npc": "mira"}),
        ("world.event", {"name": "thunder"}),
    ]:
        assert (await owl.ask(t, d))["d"]["code"] == "forbidden"
    await ann.say()
    end = (await owl.get("npc.turn.end"))["d"]
    assert owl.heard(end["turn"]) == end["text"]


async def test_interest_may_be_the_ends_of_turns_alone(server: GameServer) -> None:
    ann = await Player.enter(server)
    owl = await Player.enter(server, "owl", role="observer", interest=["npc.turn.end"])
    await ann.say()
    await owl.get("npc.turn.end")
    await owl.quiet()
    assert set(owl.types()) == {"hello", "welcome", "scene.joined", "npc.turn.end"}


async def test_a_greeting_is_spoken_only_where_it_is_asked_for(server: GameServer) -> None:
    ann = await Player.enter(server)
    bob = await Player.enter(server, "bob", greet=True)
    for player in (ann, bob):
        start = (await player.get("npc.turn.start"))["d"]
        assert (start["npc"], start["cause"], start["to"]) == ("mira", ["greeting"], [])
        end = (await player.get("npc.turn.end"))["d"]
        assert (end["text"], end["n"], end["kept"], end["status"]) == (GREETING, 1, 1, "completed")
        assert player.heard(end["turn"]) == GREETING
    await ann.quiet()
    assert ann.types().count("npc.turn.start") == 1


async def test_a_late_joiner_gets_the_turn_so_far_and_then_the_rest(tmp_path: Path) -> None:
    text = "A long answer that goes on and on while people come and go in the common room."
    async with serving(tmp_path, [text]) as server:
        ann = await Player.enter(server)
        await ann.say()
        await ann.get("npc.delta", i=0)
        await ann.get("npc.delta")
        bob = await Player.enter(server, "bob")
        (live,) = bob.log[-1]["d"]["turns"]
        assert live["i"] == 0
        assert 0 < live["n"] < len(text)
        assert text.startswith(live["text"])
        following = await bob.get("npc.delta")
        assert following["d"]["i"] == live["n"]
        end = (await bob.get("npc.turn.end"))["d"]
        assert bob.heard(end["turn"]) == end["text"] == text
        assert "npc.turn.start" not in bob.types()


async def test_rejoining_in_mid_turn_continues_from_the_own_cursor(tmp_path: Path) -> None:
    text = "Word after word after word after word after word after word, said slowly."
    async with serving(tmp_path, [text]) as server:
        ann = await Player.enter(server)
        await ann.say()
        await ann.get("npc.delta")
        again = await ann.ask("scene.join", {"scene": SCENE})
        (live,) = again["d"]["turns"]
        end = (await ann.get("npc.turn.end"))["d"]
        assert ann.heard(end["turn"]) == text
        assert text.startswith(live["text"])


async def test_world_events_of_players(server: GameServer) -> None:
    ann = await Player.enter(server)
    bob = await Player.enter(server, "bob")
    assert (await ann.ask("world.event", {"name": "thunder", "data": {"n": 3}}))["t"] == "ack"
    seen = await bob.get("world.event")
    assert seen["d"] == {"name": "thunder", "data": {"n": 3}, "src": "player", "state": False}
    assert seen["s"] == 3
    refused = await ann.ask("world.event", {"name": "flood", "scope": "scene"})
    assert refused["d"]["code"] == "forbidden"
    own = {"name": "thunder", "scope": "player"}
    assert (await ann.ask("world.event", own))["t"] == "ack"
    assert (await ann.get("world.event", data=None))["st"] == "me"
    assert (await ann.ask("world.event", {"name": "thunder", "scope": "npc"}))["t"] == "ack"
    assert (await bob.get("world.event"))["st"] == SCENE
    elsewhere = await ann.ask("world.event", {"name": "thunder", "scope": "sky"})
    assert elsewhere["d"]["code"] == "forbidden"
    big = (await ann.ask("world.event", {"name": "thunder", "data": "x" * 5000}))["d"]
    assert (big["code"], big["limit"], big["actual"]) == ("too_large", 4096, 5002)


async def test_what_has_no_behaviour_here_is_refused_with_a_code(server: GameServer) -> None:
    ann = await Player.enter(server)
    context = await ann.ask("context.set", {"items": [{"k": "near", "v": "hearth"}]})
    assert context["d"]["code"] == "forbidden"
    result = await ann.ask("action.result", {"turn": "t-1", "action": "a-1", "ok": True})
    assert result["d"]["code"] == "no_turn"


async def test_empty_instances_are_forgotten_after_a_while(tmp_path: Path) -> None:
    flow = {"scene_idle_s": 0.05}
    async with serving(tmp_path, ["x"], flow=flow, guards={"ping_interval_s": 0.08}) as server:
        ann = await Player.enter(server, instance="one")
        first_epoch = ann.log[-1]["ep"]
        await asyncio.sleep(0.1)
        assert server.gauges()["scenes"] == 1
        await ann.ask("scene.leave", {})
        await until(lambda: server.gauges()["scenes"] == 0)
        again = await ann.ask("scene.join", {"scene": SCENE, "instance": "one"}, st="me")
        assert again["s"] == 1
        assert again["ep"] > first_epoch


async def test_the_scene_itself_stays_and_its_npcs_remember(tmp_path: Path) -> None:
    flow = {"scene_idle_s": 0.0}
    async with serving(tmp_path, ["x"], flow=flow, guards={"ping_interval_s": 0.04}) as server:
        ann = await Player.enter(server)
        await ann.hear("Remember me")
        await ann.ask("scene.leave", {})
        await asyncio.sleep(0.05)
        back = await Player.enter(server)
        assert back.log[-1]["s"] > 3
        assert len((await back.ask("history.get", {"npc": "mira"}))["d"]["items"]) == 2


async def test_at_the_limit_the_longest_empty_instance_makes_room(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], flow={"scenes": 2}) as server:
        ann = await Player.enter(server, instance="one")
        bob = await Player.enter(server, "bob", instance="two")
        cy = await Player.enter(server, "cy", instance="three")
        assert cy.log[-1]["d"]["code"] == "busy"
        await ann.ask("scene.leave", {})
        joined = await cy.ask("scene.join", {"scene": SCENE, "instance": "three"}, st="me")
        assert joined["t"] == "scene.joined"
        assert (await bob.hear())["status"] == "completed"
