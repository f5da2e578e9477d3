"""Where no sessions are kept, whoever goes leaves nothing behind, with or without a word."""

import asyncio
import random
from pathlib import Path

import pytest

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import serving, until

TEXT = "A long story of the ford, the mill and the bell that rings after midnight. " * 5
NO_RESUME = {"resume_s": 0}


def resting(server: GameServer) -> tuple[float, ...]:
    """What must be the same after as before."""
    game, engine = server.gauges(), server._engine.gauges()
    names = ("connections", "handshakes", "sessions", "members", "turns_running", "lines_waiting")
    return (
        *(game[name] for name in names),
        *(engine[name] for name in ("running", "waiting", "blocks_held")),
        len(asyncio.all_tasks()),
    )


async def test_a_hundred_vanish_in_mid_reply_and_all_gauges_return(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with serving(tmp_path, [TEXT], step_ms=1.0, flow=NO_RESUME) as server:
        ann = await Player.enter(server)
        await ann.hear()
        await ann.get("npc.state", activity="idle")
        await until(lambda: server._engine.gauges()["running"] == 0)
        before = resting(server)
        for number in range(100):
            guest = await Player.enter(server, f"guest-{number}", instance=f"i{number % 5}")
            await guest.say("Tell me")
            await guest.get("npc.turn.start")
            if number % 2:
                await guest.get("npc.delta")
            if number % 3 == 0:
                await guest.say("And then?")
            await asyncio.sleep(chance.random() * 0.005)
            if number % 4:
                guest.socket.transport.abort()
            else:
                await guest.send("bye")
                assert await guest.closed() == 1000
            await until(lambda: server.gauges()["connections"] == 1)
        await until(lambda: resting(server) == before)
        gauges = server.gauges()
        assert gauges["turns_ended_cancelled"] == 100
        assert gauges["turns_started"] == 101
        assert (await ann.hear())["text"] == TEXT


async def test_a_turn_goes_on_for_those_who_still_hear_it(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT, "Bob's answer."], flow=NO_RESUME) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        await ann.say()
        await ann.say("My next line, never to be answered")
        asked = (await bob.say("And mine?"))["d"]
        await bob.get("npc.delta")
        ann.socket.transport.abort()
        first = (await bob.get("npc.turn.end"))["d"]
        assert (first["status"], first["text"]) == ("completed", TEXT)
        assert (await bob.get("npc.turn.start"))["d"]["cause"] == [asked["msg"]]
        assert (await bob.get("npc.turn.end"))["d"]["text"] == "Bob's answer."


@pytest.mark.parametrize("way", ["leave", "bye", "close", "abort"])
async def test_each_way_to_go_cancels_at_once_what_nobody_hears(tmp_path: Path, way: str) -> None:
    async with serving(tmp_path, [TEXT], flow=NO_RESUME) as server:
        ann = await Player.enter(server)
        await ann.say()
        await ann.get("npc.delta")
        if way == "leave":
            assert (await ann.ask("scene.leave", {}))["t"] == "scene.left"
        elif way == "bye":
            await ann.send("bye", {"keep": True})
            assert await ann.closed() == 1000
        elif way == "close":
            await ann.socket.close(1000)
        else:
            ann.socket.transport.abort()
        await until(lambda: server.gauges().get("turns_ended_cancelled", 0) == 1)
        await until(lambda: server._engine.gauges()["running"] == 0)
        assert server.gauges()["members"] == 0


async def test_a_turn_is_cancelled_while_it_still_waits_for_the_engine(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT], step_ms=30.0, flow=NO_RESUME) as server:
        ann = await Player.enter(server)
        await ann.say()
        ann.socket.transport.abort()
        await until(lambda: server.gauges().get("turns_ended_cancelled", 0) == 1)
        assert server._engine.gauges()["running"] == 0
