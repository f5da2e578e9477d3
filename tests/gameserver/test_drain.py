"""Going down in good order: turns end, everybody is told, nobody is cut off in mid-sentence."""

import asyncio
from pathlib import Path

from tests.gameserver.player import Player
from tests.gameserver.stage import serving, until

TEXT = "A long story of the ford and the mill. " * 10


async def test_open_turns_end_and_clients_are_sent_away(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        stranger = await Player.dial(server)
        await ann.say()
        await ann.say("And then?")
        await ann.get("npc.delta")
        await server.drain()
        for player in (ann, bob, stranger):
            assert await player.closed() == 1012
            reconnect = next(m["d"] for m in player.log if m["t"] == "reconnect")
            assert 0 <= reconnect["delay_ms"] <= 5000
            error = player.log[-1]
            assert (error["d"]["code"], error["d"]["fatal"]) == ("draining", True)
        end = (await ann.get("npc.turn.end"))["d"]
        assert (end["status"], end["reason"]) == ("interrupted", "drain")
        assert end["kept"] == end["n"] > 0
        assert ann.heard(end["turn"]) == end["text"]
        assert ann.types().count("npc.turn.start") == 1
        assert server.gauges()["connections"] == server.gauges()["turns_running"] == 0


async def test_speech_may_be_given_time_to_end(tmp_path: Path) -> None:
    async with serving(tmp_path, ["A short answer."], flow={"drain_s": 5.0}) as server:
        ann = await Player.enter(server)
        await ann.say()
        await ann.get("npc.turn.start")
        draining = asyncio.create_task(server.drain())
        await asyncio.sleep(0)
        refused = await ann.say("more?")
        assert refused["d"]["code"] == "draining"
        assert refused["d"]["retry_ms"] > 0
        assert (await ann.ask("scene.join", {"scene": "inn"}))["d"]["code"] == "draining"
        assert (await ann.get("npc.turn.end"))["d"]["status"] == "completed"
        await draining


async def test_an_engine_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann = await Player.enter(server)
        await ann.say()
        await ann.get("npc.delta")
        floor = server._world.actors["inn"].floors["mira"]
        floor._delivery._cancel = lambda ticket: None
        began = asyncio.get_running_loop().time()
        await server.drain()
        assert asyncio.get_running_loop().time() - began < 4
        assert (await ann.get("npc.turn.end"))["d"]["status"] == "interrupted"
        assert await ann.closed() == 1012


async def test_an_error_comes_well_before_its_close(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], guards={"linger_s": 0.2}) as server:
        ann = await Player.dial(server)
        await ann.socket.send(b"binary")
        await ann.get("error")
        began = asyncio.get_running_loop().time()
        assert await ann.closed() == 1003
        assert asyncio.get_running_loop().time() - began > 0.18
        await until(lambda: server.gauges()["connections"] == 0)
