"""The kill switch of a server: nothing is generated from the next step on, until it is released."""

import asyncio
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from gameserver.cli import cli
from tests.gameserver.node import node_on_script, running
from tests.gameserver.player import Player
from tests.gameserver.stage import serving, until

LONG = "The bridge is gone. " * 20


async def test_every_turn_ends_once_and_none_begins_until_it_is_released(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG]) as server:
        ann, bob = await Player.enter(server, "ann"), await Player.enter(server, "bob")
        await ann.say()
        await bob.say("And I?")  # waits for Mira
        await bob.say("You, Captain?", npc="harn")
        whispered = await ann.say("Quietly, Captain.", npc="harn", to=["ann", "harn"])
        assert whispered["t"] == "say.accepted"
        await until(lambda: server.gauges()["turns_running"] == 2)
        server.halt()
        await until(lambda: server.gauges()["turns_running"] == 0)
        gauges = server.gauges()
        assert (gauges["halted"], gauges["halts"], gauges["lines_waiting"]) == (1, 1, 0)
        for player in (ann, bob):
            await player.quiet()
        starts = [m["d"]["turn"] for m in ann.log if m["t"] == "npc.turn.start"]
        ends = [m["d"] for m in ann.log if m["t"] == "npc.turn.end"]
        assert sorted(starts) == sorted(end["turn"] for end in ends)
        assert len(set(starts)) == len(starts) == 4
        spoken = [(e["status"], e["reason"]) for e in ends if e["status"] != "failed"]
        assert spoken == [("interrupted", "halted")] * 2
        assert {e["err"]["code"] for e in ends if e["status"] == "failed"} == {"halted"}
        refused = (await ann.say("Anybody?"))["d"]
        assert (refused["code"], refused["retry_ms"] > 0) == ("halted", True)
        server.release()
        server.release()
        assert server.gauges()["halted"] == 0
        assert (await ann.hear("Anybody now?"))["status"] == "completed"


async def test_what_was_said_before_is_remembered(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG, "Yes."], inspect=True) as server:
        ann = await Player.enter(server)
        await ann.say()
        turn = (await ann.get("npc.turn.start"))["d"]["turn"]
        while len(ann.heard(turn)) < 5:
            await ann.receive()
        server.halt()
        end = (await ann.get("npc.turn.end", turn=turn))["d"]
        assert LONG.startswith(end["text"]) and end["text"]
        assert end["kept"] == end["n"]
        server.release()
        second = await ann.hear("Go on?")
        assert f"A:{end['text']}\n" in server.prompts[second["turn"]].text


async def test_console_and_command_line_halt_a_node_and_the_api_with_it(tmp_path: Path) -> None:
    async with (
        running(node_on_script(tmp_path, [LONG])) as node,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.console_port}") as http,
    ):
        asked = {"model": "default", "messages": [{"role": "user", "content": "Hm?"}]}
        assert (await http.post("/v1/chat/completions", json=asked)).status_code == 200
        assert (await http.get("/halt")).json() == {"halted": False}
        console = f"http://127.0.0.1:{node.console_port}"
        invoke = CliRunner().invoke
        result = await asyncio.to_thread(invoke, cli, ["halt", "--console", console])
        assert result.exit_code == 0, result.output
        assert (await http.get("/halt")).json() == {"halted": True}
        refused = await http.post("/v1/chat/completions", json=asked)
        assert refused.status_code == 503
        assert "halted" in refused.json()["error"]["message"]
        assert "troupe_halted 1.0" in (await http.get("/metrics")).text
        elsewhere = {"origin": "http://evil.example"}
        assert (await http.post("/release", headers=elsewhere)).status_code == 403
        result = await asyncio.to_thread(invoke, cli, ["release", "--console", console])
        assert result.exit_code == 0, result.output
        assert (await http.post("/v1/chat/completions", json=asked)).status_code == 200


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
def test_a_console_that_is_not_there_gives_one_line(url: str) -> None:
    result = CliRunner().invoke(cli, ["halt", "--console", url])
    assert result.exit_code == 1
    assert "troupe: no console at" in result.output
    assert "Traceback" not in result.output
