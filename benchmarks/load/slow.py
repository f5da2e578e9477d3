"""Slow: whether those who read slowly, or not at all, are felt by those who keep up."""

import asyncio
import statistics
from typing import Any

from benchmarks.load.crowd import Bus
from benchmarks.load.node import Node
from benchmarks.load.part import Promise, Result, Stage, p

_REPLY = "The river took the bridge on the sixth day, and nobody has crossed it since. " * 6
_STEP_MS = 20.0
_PER_ROOM = 25
#: Small buffers, so that who does not read is noticed within seconds and not minutes.
_GUARDS = {"send_buffer_bytes": 4096, "write_bytes": 4096, "stall_s": 2.0}


async def run(stage: Stage, healthy: int, slow: int, rounds: int, measure_s: float) -> Result:
    """In turn without and with slow and stopped readers in the very same rooms."""
    node = await stage.node(Node(stage.folder / "node", [_REPLY], _STEP_MS, guards=_GUARDS))
    good, bad = await stage.bus(), await stage.bus()
    stage.say(f"{healthy} healthy readers come in")
    wish: dict[str, Any] = {"port": node.port, "scene": "inn", "npcs": ["mira"]}
    await good.do("open", count=healthy, prefix="r", per_room=_PER_ROOM, **wish)
    await good.do("talk")
    await asyncio.sleep(4)
    rows = []
    for number in range(rounds):
        calm = await _measure(good, measure_s)
        before = await node.gauges()
        stage.say(f"round {number + 1} of {rounds}: {slow} slow readers and {slow} stopped ones")
        # Of the same names of rooms, so that they sit beside the healthy ones.
        narrow = {**wish, "receives": 4096}
        share = -(-slow // max(1, healthy // _PER_ROOM))
        await bad.do("open", count=slow, prefix=f"s{number}-", rooms="r", per_room=share, **narrow)
        await bad.do("stop_reading", sip_bytes=512, sip_s=0.5)
        stopped = await stage.bus()
        await stopped.do(
            "open", count=slow, prefix=f"x{number}-", rooms="r", per_room=share, **wish
        )
        await stopped.do("stop_reading")
        beside = await _measure(good, measure_s)
        after = await node.gauges()
        await bad.stop()
        await stopped.stop()
        bad = await stage.bus()
        rows.append(
            {
                "round": number + 1,
                "late p99 alone, ms": calm["late"],
                "late p99 beside slow ones, ms": beside["late"],
                "gap p99 alone, ms": calm["gap"],
                "gap p99 beside slow ones, ms": beside["gap"],
                "cut off": after.get("stalled", 0) - before.get("stalled", 0),
                "RSS, MB": node.rss_mb(),
            }
        )
        await asyncio.sleep(2)

    def ratio(kind: str) -> float:
        beside = [row[f"{kind} p99 beside slow ones, ms"] for row in rows]
        alone = [row[f"{kind} p99 alone, ms"] for row in rows]
        return statistics.median(beside) / max(0.001, statistics.median(alone))

    return Result(
        "slow",
        {"healthy": healthy, "slow": slow, "stopped": slow, "rounds": rounds, "s": measure_s},
        [
            Promise("p99 of lateness, beside slow readers against alone", ratio("late"), 1.1, "×"),
            Promise("p99 of gaps, beside slow readers against alone", ratio("gap"), 1.1, "×"),
        ],
        rows,
        ["Medians of the rounds are compared. Slow: some 1,000 bytes a second; stopped: none."],
    )


async def _measure(good: Bus, seconds: float) -> dict[str, float]:
    await good.do("report")
    await asyncio.sleep(seconds)
    seen = await good.do("report")
    return {"late": p(seen["late"], 0.99), "gap": p(seen["gaps"], 0.99)}
