"""A node starts in order, says how far it is, and ends in good order."""

import asyncio
from pathlib import Path

import httpx
import pytest

from engine.weights.load import load_vocabulary
from gameserver.app import Application
from gameserver.readiness import Step
from gameserver.settings import Settings
from gameserver.visitor import Visitor
from scenes.pack import PackError
from tests.gameserver.node import running_node, write_script

pytestmark = pytest.mark.model


@pytest.fixture
def script(tmp_path: Path, cache_dir: Path, default_model_path: Path) -> Path:
    words = load_vocabulary(str(default_model_path), data_dir=cache_dir)
    return write_script(tmp_path, words.tokenizer, ["A green light, dear."])


async def test_console_game_and_gauges_tell_one_story(script: Path, cache_dir: Path) -> None:
    async with (
        running_node(script, cache_dir, inspect=True) as node,
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
        assert message["d"]["text"] == "A green light, dear."
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


async def test_the_console_answers_while_the_rest_still_starts(
    script: Path, cache_dir: Path
) -> None:
    seen: list[tuple[str, bool]] = []
    node = Application(
        Settings(port=0, console_port=0, model=f"script:{script}"),
        data_dir=cache_dir,
        packs=(),
        on_step=lambda step: seen.append((step.message, node.console_port > 0)),
    )
    try:
        await node.start()
    finally:
        await node.stop()
    assert all(console_is_up for _, console_is_up in seen)


async def test_a_broken_pack_stops_the_start_and_leaves_nothing_open(
    script: Path, cache_dir: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "ruin"
    pack.mkdir()
    (pack / "scene.yaml").write_text("id: ruin\n")
    node = Application(
        Settings(port=0, console_port=0, model=f"script:{script}"),
        data_dir=cache_dir,
        packs=(pack,),
    )
    with pytest.raises(PackError, match=r"scene\.yaml"):
        await node.start()
    await node.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", node.console_port)


async def test_stop_says_goodbye_and_may_be_called_twice(script: Path, cache_dir: Path) -> None:
    async with running_node(script, cache_dir, step_ms=50) as node:
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


def test_steps_carry_numbers_only_where_there_are_any() -> None:
    assert Step("Warming").total == 0
