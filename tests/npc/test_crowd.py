"""Registered NPCs cost next to nothing until somebody speaks to them."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.crowd import write_packs
from engine.api import AsyncEngine
from engine.config import EngineConfig
from npc.cast import Cast
from npc.dialogue import TurnRequest
from npc.settings import ReplySettings
from tests.gameserver.stage import byte_model
from tests.npc.stage import line
from tests.npc.test_cast import ask
from tests.scenes.packs import write_pack

#: 100,000 of them fit into 200 MB.
MOST_BYTES = 2000


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(script_step_ms=0, max_model_len=32_768)
    engine = AsyncEngine(byte_model(["Good day."]), config)
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_large_world_is_small_in_memory_and_computes_nothing(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    packs = write_packs(tmp_path, 1000)
    cast = Cast(engine, ReplySettings(), warm_npcs=0)
    steps: list[tuple[str, int, int]] = []
    await cast.open_all(packs[:1], lambda *step: steps.append(step))
    gc.collect()
    tracemalloc.start()
    try:
        await cast.open_all(packs[1:], lambda *step: steps.append(step))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 750 < MOST_BYTES
    assert steps[-3:] == [("Reading the scenes", done, 3) for done in range(3)]
    assert sum(len(scene.npcs) for scene in cast.scenes.values()) == 1000
    assert engine.gauges()["steps"] == 0
    assert engine.gauges()["blocks_held"] == 0
    await cast.close()


async def test_the_first_line_to_a_cold_npc_computes_its_prompt_and_the_next_does_not(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    cast = Cast(engine, ReplySettings(), warm_npcs=0)
    scene = await cast.open(write_pack(tmp_path))
    cached = []
    for turn in ("t1", "t2"):
        talk = scene.dialogue("mira", f"inn.{turn}")
        _, last = await ask(talk, TurnRequest(turn, line("Hi!")))
        assert last.usage is not None
        cached.append(last.usage.cached_tokens)
    assert cached[0] == 0
    assert cached[1] > 200
    await cast.close()
    async with asyncio.timeout(5):
        while engine.gauges()["blocks_held"]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_those_whom_players_need_first_are_warm_as_far_as_the_setting_goes(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    packs = [write_pack(tmp_path / name) for name in ("one", "two")]
    file = packs[1] / "scene.yaml"
    file.write_text(file.read_text().replace("id: inn", "id: mill"))
    cast = Cast(engine, ReplySettings(), warm_npcs=3)
    await cast.open_all(packs, lambda *step: None)
    assert [scene.warmed for scene in cast.scenes.values()] == [("harn", "mira"), ("harn",)]
    (packs[1] / "npcs" / "mira.yaml").unlink()
    file.write_text(file.read_text().replace("  - npcs/mira.yaml\n", ""))
    await cast.reload(packs[1], lambda scene: None)
    assert cast.scenes["mill"].warmed == ("harn",), "a new version warms as many again"
    await cast.close()
