"""A node starts in order, says how far it is, and ends in good order."""

import asyncio
import json
import os
import signal
from pathlib import Path
from unittest import mock

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Origin, Subprotocol

from engine.weights.load import Vocabulary
from gameserver.app import Application
from gameserver.folders import MEMORY_FILE
from gameserver.keys import key_line, new_key
from gameserver.protocol import PATH, SUBPROTOCOL
from gameserver.settings import AuthSettings
from gameserver.stores.sqlite import FILE as WORLDS_FILE
from gameserver.visitor import Visitor
from npc.memory.opening import MemoryFileError
from npc.settings import MemorySettings
from scenes.pack import PackError
from tests.gameserver.node import VOCABULARY, node_on_script, running
from tests.gameserver.player import Player
from tests.gameserver.stage import until, write_pack

REPLY = "A green light, dear."


async def test_console_game_and_gauges_tell_one_story(tmp_path: Path) -> None:
    async with (
        running(node_on_script(tmp_path, [REPLY], inspect=True)) as node,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.console_port}") as http,
    ):
        assert (await http.get("/readyz")).status_code == 200
        house = (await http.get("/playground.json")).json()
        assert house["game"]["port"] == node.game_port
        assert [scene["id"] for scene in house["scenes"]] == ["gilded_griffin"]

        async with Visitor.connected(f"ws://127.0.0.1:{node.game_port}", "Ada") as ada:
            await ada.join(None, greet=False)
            await ada.command("say", {"npc": "mira", "text": "Any rumours?"})
            async for message in ada.messages():
                if message["t"] == "npc.turn.end":
                    break
        assert message["d"]["text"] == REPLY
        usage = message["d"]["usage"]
        # The scene and Mira were computed before the game port opened.
        assert usage["cached"] > 0.8 * usage["prompt"]

        prompt = (await http.get(f"/debug/prompts/{message['d']['turn']}")).json()
        assert "Any rumours?" in prompt["text"]
        assert len(prompt["token_ids"]) == usage["prompt"]
        gauges = (await http.get("/debug/gauges")).json()
        assert gauges["requests_finished"] == 1
        assert {"blocks_free", "blocks_held", "blocks_cached", "loop_lag_ms_p99"} <= gauges.keys()
        assert f"troupe_steps_total {gauges['steps']:.1f}" in (await http.get("/metrics")).text


async def test_the_console_may_be_called_by_any_name_of_this_machine(tmp_path: Path) -> None:
    async with running(node_on_script(tmp_path, [REPLY])) as node:
        url = f"ws://127.0.0.1:{node.game_port}{PATH}"
        for name in ("localhost", "127.0.0.1", "[::1]"):
            origin = Origin(f"http://{name}:{node.console_port}")
            async with connect(url, origin=origin, subprotocols=[Subprotocol(SUBPROTOCOL)]):
                pass


async def test_the_console_is_up_before_the_work_begins(tmp_path: Path) -> None:
    node = node_on_script(tmp_path, [REPLY])
    ports: list[int] = []

    def load(*_: object, **__: object) -> Vocabulary:
        ports.append(node.console_port)
        assert not node.readiness.ready
        return VOCABULARY

    with mock.patch("gameserver.app.load_vocabulary", load):
        await node.start()
    await node.stop()
    assert ports[0] > 0


async def test_keys_that_were_checked_at_the_start_are_those_that_serve(tmp_path: Path) -> None:
    """Whatever becomes of their file while a model is fetched for an hour."""
    key, file = new_key(), tmp_path / "keys"
    file.write_text(key_line("studio", key))
    node = node_on_script(tmp_path, [REPLY])
    node.settings = msgspec.structs.replace(node.settings, auth=AuthSettings(keys_file=str(file)))

    def load(*_: object, **__: object) -> Vocabulary:
        file.unlink()
        return VOCABULARY

    with mock.patch("gameserver.app.load_vocabulary", load):
        await node.start()
    try:
        assert node.game is not None
        player = await Player.dial(node.game)
        assert (await player.identify(auth={"kind": "key", "token": key}))["t"] == "welcome"
    finally:
        await node.stop()


async def test_a_broken_pack_stops_the_start_and_leaves_nothing_open(tmp_path: Path) -> None:
    pack = tmp_path / "ruin"
    pack.mkdir()
    (pack / "scene.yaml").write_text("id: ruin\n")
    node = node_on_script(tmp_path, [REPLY], packs=(pack,))
    with pytest.raises(PackError, match=r"scene\.yaml"):
        async with running(node):
            pass
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", node.console_port)


async def test_stop_says_goodbye_and_may_be_called_twice(tmp_path: Path) -> None:
    async with running(node_on_script(tmp_path, [REPLY], step_ms=50)) as node:
        async with Visitor.connected(f"ws://127.0.0.1:{node.game_port}", "Ada") as ada:
            await ada.join(None, greet=False)
            await ada.command("say", {"npc": "mira", "text": "Hello"})
            kinds = []
            stopping = None
            async for message in ada.messages():
                kinds.append(message["t"])
                if message["t"] == "npc.turn.start":
                    stopping = asyncio.create_task(node.stop())
                if message["t"] == "reconnect":
                    break
            assert kinds.index("npc.turn.end") < kinds.index("reconnect")
            assert stopping is not None
        await stopping
        assert node.readiness.state == "draining"
        await node.stop()


async def test_the_console_reads_scenes_again_for_this_machine_only(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "pack")
    async with (
        running(node_on_script(tmp_path, [REPLY], packs=(pack,))) as node,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.console_port}") as http,
    ):
        assert (await http.get("/reload")).status_code == 404, "a link changes nothing"
        stranger = {"origin": "https://game.example"}
        assert (await http.post("/reload", headers=stranger)).status_code == 403
        report = (await http.post("/reload")).json()
        assert report["scenes"][0]["what"] == "unchanged"
        (pack / "scene.yaml").write_text("id: inn\ntitle: 7\n")
        answer = await http.post("/reload")
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        assert (fault["file"], fault["line"]) == (str(pack / "scene.yaml"), 2)
        assert fault["field"] == "title"


async def test_a_profile_is_written_when_the_server_ends(tmp_path: Path) -> None:
    file = tmp_path / "run.txt"
    async with running(node_on_script(tmp_path, [REPLY], profile=file)) as node:
        async with Visitor.connected(f"ws://127.0.0.1:{node.game_port}", "Ada") as ada:
            await ada.join(None, greet=False)
            await ada.command("say", {"npc": "mira", "text": "Hello"})
            async for message in ada.messages():
                if message["t"] == "npc.turn.end":
                    break
        assert not file.exists()
    assert "class 1" in file.read_text()
    assert json.loads((tmp_path / "run.txt.trace.json").read_text())["traceEvents"]


async def test_sighup_reads_scenes_again(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "pack")
    node = node_on_script(tmp_path, [REPLY], packs=(pack,))
    ready = asyncio.Event()
    with mock.patch("gameserver.app.load_vocabulary", return_value=VOCABULARY):
        life = asyncio.create_task(node.run(ready.set))
        await ready.wait()
        write_pack(tmp_path / "other", title="Another Inn")
        (tmp_path / "other" / "scene.yaml").replace(pack / "scene.yaml")
        os.kill(os.getpid(), signal.SIGHUP)
        assert node.cast is not None
        cast = node.cast
        await until(lambda: cast.scenes["inn"].title == "Another Inn")
        os.kill(os.getpid(), signal.SIGTERM)
        await life


async def test_npcs_remember_over_a_restart_of_the_node_until_they_must_forget(
    tmp_path: Path,
) -> None:
    memory = msgspec.convert({"distil_quiet_s": 0.0, "distil_pause_s": 0.01}, MemorySettings)

    def node() -> Application:
        made = node_on_script(tmp_path, [REPLY], inspect=True)
        made.settings = msgspec.structs.replace(
            made.settings, data=str(tmp_path / "kept"), memory=memory
        )
        return made

    async def said(here: Application, text: str) -> str:
        assert here.game is not None and here.prompts is not None
        ada = await Player.enter(here.game, "ada", scene="gilded_griffin")
        turn = (await ada.hear(text))["turn"]
        await ada.socket.close()
        return here.prompts[turn].text

    async with running(node()) as first:
        await said(first, "My horse is called Biscuit.")
        await until(lambda: first.gauges()["memory_facts"] == 1)
    assert b"Biscuit" in (tmp_path / "kept" / MEMORY_FILE).read_bytes()
    (tmp_path / "kept" / WORLDS_FILE).unlink()  # the talk itself
    async with running(node()) as second:
        prompt = await said(second, "What do you know of my horse?")
        assert "(Mira remembers: about ada: My horse is called Biscuit.)" in prompt
        url = f"http://127.0.0.1:{second.console_port}/console/memories"
        async with httpx.AsyncClient() as http:
            (row,) = (await http.get(url)).json()["players"]
            assert row["npc"] == "mira"
            assert (await http.delete(f"{url}/{row['player']}")).json()["deleted"] > 0
            assert (await http.get(url)).json() == {"players": []}
        assert b"Biscuit" not in (tmp_path / "kept" / MEMORY_FILE).read_bytes()
        assert "Biscuit" not in await said(second, "And now?")


async def test_a_damaged_memory_stops_the_start_before_the_model_is_loaded(tmp_path: Path) -> None:
    node = node_on_script(tmp_path, [REPLY])
    (tmp_path / MEMORY_FILE).write_bytes(b"This is no database. " * 99)
    node.settings = msgspec.structs.replace(node.settings, data=str(tmp_path))
    with pytest.raises(MemoryFileError, match="damaged"):
        async with running(node):
            pass
    assert node.engine is None
