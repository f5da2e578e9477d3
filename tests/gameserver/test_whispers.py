"""A whisper and its answer reach exactly those it names."""

import itertools
import json
from pathlib import Path

import pytest

from gameserver import sessions
from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving

SECRET = "The key is under the third step."


async def trio(server: GameServer) -> list[Player]:
    """Ann, Bob and Cy in one scene."""
    return [await Player.enter(server, name) for name in ("ann", "bob", "cy")]


def leaks(player: Player, *secrets: str) -> bool:
    """Whether any of these reached a player."""
    return any(secret in json.dumps(player.log) for secret in secrets)


async def test_line_and_answer_go_to_speaker_and_named_players_on_me(server: GameServer) -> None:
    ann, bob, cy = await trio(server)
    accepted = await ann.say(SECRET, to=["bob", "mira"])
    assert accepted["st"] == SCENE
    for player in (ann, bob):
        said = await player.get("player.said")
        assert (said["st"], said["d"]["text"], said["d"]["scene"]) == ("me", SECRET, SCENE)
        assert "near" not in said["d"]
        start = await player.get("npc.turn.start")
        assert (start["st"], start["d"]["to"]) == ("me", ["ann", "bob"])
        assert start["d"]["cause"] == [accepted["d"]["msg"]]
        end = await player.get("npc.turn.end")
        assert end["st"] == "me"
        turn = end["d"]["turn"]
        assert (
            player.heard(turn) == end["d"]["text"] == "The bridge is gone. Nobody leaves tonight."
        )
        assert [said["s"], start["s"], end["s"]] == [1, 2, 3]
    deltas = [m for m in bob.log if m["t"] == "npc.delta"]
    assert {delta["st"] for delta in deltas} == {"me"}
    await cy.ask("heartbeat")
    await cy.quiet()
    assert not leaks(cy, SECRET, turn, "bridge", accepted["d"]["msg"])
    busy = [m["d"] for m in cy.log if m["t"] == "npc.state"]
    assert {state["activity"] for state in busy} == {"busy", "idle"}
    assert all(state["attention"] is None for state in busy)


async def test_a_whisper_to_an_npc_alone_is_for_nobody_else(server: GameServer) -> None:
    ann, bob, cy = await trio(server)
    await ann.ask("say", {"text": SECRET, "to": ["harn"]})
    start = (await ann.get("npc.turn.start"))["d"]
    assert (start["npc"], start["to"]) == ("harn", ["ann"])
    await ann.get("npc.turn.end")
    for player in (bob, cy):
        await player.ask("heartbeat")
        assert not leaks(player, SECRET, "bridge")


async def test_players_whisper_without_any_npc_hearing(server: GameServer) -> None:
    ann, bob, cy = await trio(server)
    accepted = await ann.ask("say", {"text": SECRET, "to": ["bob"]})
    assert accepted["t"] == "say.accepted"
    assert (await bob.get("player.said"))["d"]["text"] == SECRET
    await bob.quiet(0.05)
    assert "npc.turn.start" not in bob.types()
    await cy.ask("heartbeat")
    assert not leaks(cy, SECRET)


async def test_nobody_is_named_who_is_not_here(server: GameServer) -> None:
    ann, *_ = await trio(server)
    refused = (await ann.say(SECRET, to=["zoe"]))["d"]
    assert refused["code"] == "bad_field"
    assert "zoe" in refused["msg"]


async def test_outsiders_cannot_touch_or_even_see_a_whispered_turn(server: GameServer) -> None:
    ann, bob, cy = await trio(server)
    await ann.say(SECRET, to=["bob"])
    turn = (await ann.get("npc.turn.start"))["d"]["turn"]
    for target in ({"turn": turn}, {"npc": "mira"}):
        assert (await cy.ask("npc.interrupt", target))["d"]["code"] == "no_turn"
    late = await Player.enter(server, "dee")
    assert late.log[-1]["d"]["turns"] == []
    assert (await bob.ask("npc.interrupt", {"turn": turn}, st="me"))["t"] == "ack"
    assert (await ann.get("npc.turn.end"))["d"]["status"] == "interrupted"
    assert (await cy.ask("turn.heard", {"turn": turn, "heard_i": 0}))["d"]["code"] == "no_turn"


async def test_a_whisper_reaches_each_in_the_epoch_of_its_own_stream(
    server: GameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or clients, which drop what comes in a lower one, would lose the words of those before them
    and then their own."""
    clock = itertools.count(1_000)
    monkeypatch.setattr(sessions, "now_ms", lambda: next(clock))
    ann, bob, cy = await trio(server)
    for speaker, circle in ((bob, ["ann", "cy", "mira"]), (ann, ["bob", "cy", "mira"])):
        await speaker.say(SECRET, to=circle)
        for player in (ann, bob, cy):
            await player.get("npc.turn.end")
    epochs = [{m["ep"] for m in player.log if m.get("st") == "me"} for player in (ann, bob, cy)]
    assert [len(epoch) for epoch in epochs] == [1, 1, 1]
    assert len(set.union(*epochs)) == 3


async def test_history_shows_a_whisper_to_its_circle_only(server: GameServer) -> None:
    ann, bob, cy = await trio(server)
    await ann.say(SECRET, to=["bob"])
    await ann.get("npc.turn.end")
    for player, lines in ((ann, 2), (bob, 2), (cy, 0)):
        for which in ({"npc": "mira"}, {"scene": SCENE}):
            assert len((await player.ask("history.get", which))["d"]["items"]) == lines


async def test_whispers_enter_only_prompts_of_their_circle(tmp_path: Path) -> None:
    async with serving(tmp_path, ["Hm."], inspect=True) as server:
        ann, _, cy = await trio(server)
        await ann.hear(SECRET, to=["bob"])
        public, aside = {}, {"to": ["ann"]}
        for speaker, to, told in (
            (cy, public, False),
            (cy, aside, False),
            (ann, {"to": ["bob"]}, True),
        ):
            end = await speaker.hear("What did Ann tell you?", **to)
            assert (SECRET in server.prompts[end["turn"]].text) is told


async def test_a_whisper_goes_on_for_its_listener_when_the_speaker_is_gone(
    server: GameServer,
) -> None:
    ann, bob, _ = await trio(server)
    await ann.say(SECRET, to=["bob"])
    await bob.get("npc.delta")
    ann.socket.transport.abort()
    assert (await bob.get("npc.turn.end"))["d"]["status"] == "completed"


async def test_a_whisper_nobody_hears_any_more_is_cancelled(server: GameServer) -> None:
    ann, bob, cy = await trio(server)
    await ann.say(SECRET, to=["mira"])
    await ann.get("npc.delta")
    left = await ann.ask("scene.leave", {})
    assert left["t"] == "scene.left"
    end = await ann.get("npc.turn.end")
    assert (end["st"], end["d"]["status"], end["d"]["kept"]) == ("me", "cancelled", 0)
    for player in (bob, cy):
        await player.ask("heartbeat")
        assert not leaks(player, SECRET)
