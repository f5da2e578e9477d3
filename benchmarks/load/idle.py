"""Idle: very many who are only there."""

import asyncio
import time

from benchmarks.load.crowd import Bus, everybody
from benchmarks.load.node import Node
from benchmarks.load.part import Promise, Result, Stage, first_words_ms, p, until
from tests.gameserver.player import Player

_TURNS = 25
_STEP_MS = 20.0


async def run(stage: Stage, sessions: int, hold_s: float) -> Result:
    """Open so many sessions, look at the node for a while, and close them."""
    node = await stage.node(Node(stage.folder / "node", ["Good evening."], _STEP_MS))
    ann = await Player.enter(node, "ann")  # type: ignore[arg-type]
    await first_words_ms(ann, 5)
    base_ms = await first_words_ms(ann, _TURNS)
    base_mb, base_cpu = node.rss_mb(), await _cpu(node, 5.0)
    buses = [await stage.bus() for _ in range(2)]
    stage.say(f"opening {sessions:,} sessions")
    began = time.monotonic()
    await _fill(node, buses, sessions // 2, "i")
    opening_s = time.monotonic() - began
    stage.say(f"{sessions:,} sessions are open; heartbeats for {hold_s:.0f} s")
    await asyncio.sleep(3)
    opened_mb = node.rss_mb()
    cpu = await _cpu(node, hold_s)
    held_mb = node.rss_mb()
    full_ms = await first_words_ms(ann, _TURNS)
    gauges = await node.gauges()
    assert gauges["sessions"] == sessions + 1, gauges["sessions"]
    stage.say("closing")
    await everybody(buses, "close")

    async def empty() -> bool:
        return (await node.gauges())["sessions"] == 1

    assert await until(empty, 60), "sessions are left"
    await asyncio.sleep(3)
    after_mb = node.rss_mb()
    # What the allocator keeps for the next ones is not lost: a second crowd needs no more.
    await _fill(node, buses, sessions // 2, "j")
    again_mb = node.rss_mb()
    size = {"sessions": sessions, "hold_s": hold_s}
    growth, step = held_mb - base_mb, p(base_ms, 0.5)
    return Result(
        "idle",
        size,
        [
            Promise("memory over base", growth, 250.0, "MB"),
            Promise("processor, of one core", cpu * 100, 10.0, "%"),
            Promise("first word of one more, against base", p(full_ms, 0.5) / step, 1.1, "×"),
            Promise("memory of a second crowd over the first", again_mb - held_mb, 25.0, "MB"),
        ],
        [
            {"": "before", "RSS, MB": base_mb, "CPU, %": base_cpu * 100, "TTFT p50, ms": step},
            {
                "": f"{sessions:,} idle",
                "RSS, MB": held_mb,
                "CPU, %": cpu * 100,
                "TTFT p50, ms": p(full_ms, 0.5),
            },
            {"": "all closed", "RSS, MB": after_mb, "CPU, %": "", "TTFT p50, ms": ""},
            {"": "a second crowd", "RSS, MB": again_mb, "CPU, %": "", "TTFT p50, ms": ""},
        ],
        [
            f"{growth * 1024 / sessions:.1f} KiB a session; {opened_mb - base_mb:.0f} MB right "
            f"after opening, which took {opening_s:.0f} s ({sessions / opening_s:.0f} sessions/s).",
            f"Event loop lag p99 {gauges['loop_lag_ms_p99']:.1f} ms, worst "
            f"{gauges['loop_lag_ms_max']:.0f} ms.",
        ],
    )


async def _fill(node: Node, buses: list[Bus], count: int, prefix: str) -> None:
    """Let every process of guests open so many sessions."""
    opening = [
        bus.do("open", port=node.port, count=count, prefix=f"{prefix}{number}-")
        for number, bus in enumerate(buses)
    ]
    for opened in await asyncio.gather(*opening):
        assert opened["ready"] == count, opened


async def _cpu(node: Node, seconds: float) -> float:
    """Cores that the node uses over so many seconds."""
    cpu, began = node.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    return (node.cpu_s() - cpu) / (time.monotonic() - began)
