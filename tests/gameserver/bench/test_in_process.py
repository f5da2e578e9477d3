"""An engine in this process is asked as the game server asks it."""

from engine import AsyncEngine, EngineConfig
from gameserver.bench.in_process import EngineTarget
from gameserver.bench.report import figures
from gameserver.bench.session import Plan, measure
from gameserver.bench.workload import PROFILES
from tests.gameserver.stage import byte_model


async def test_nobody_computes_what_another_does_even_at_once() -> None:
    engine = AsyncEngine(byte_model(["x" * 50]), EngineConfig(script_step_ms=1))
    await engine.start()
    try:
        plan = Plan.checked("tiny", "first,again,new", 0, 256, None, 0, 250)
        report = await measure(EngineTarget(engine), plan, "ours")
    finally:
        await engine.stop()
    size = PROFILES["tiny"]
    lines = size.scenes * size.npcs * size.players
    prompt = size.scene + size.persona + size.turn
    computed = size.scenes * (size.scene + size.npcs * (size.persona + size.players * size.turn))
    first, again, new = report["passes"]  # type: ignore[misc]
    assert first["prompt_tokens"] == lines * prompt
    assert first["cached_share"] == 1 - computed / (lines * prompt)
    assert again["cached_share"] == (prompt - 1) / prompt
    assert (size.scene + size.persona) / prompt <= new["cached_share"] < again["cached_share"]
    for one in report["passes"]:  # type: ignore[attr-defined]
        assert (one["replies"], one["completion_tokens"], one["errors"]) == (lines, lines * 8, {})
        by_class = one["quest_ttft_p99_ms"], one["other_ttft_p99_ms"]
        assert max(by_class) == one["ttft_p99_ms"]


def test_figures_of_nothing_are_none() -> None:
    empty = figures("first", [])
    assert empty.quest_ttft_p50_ms is None and empty.other_ttft_p99_ms is None
