"""Talk: how many can listen to speech at once before the socket side is the limit."""

import asyncio
import time

from benchmarks.load.crowd import everybody
from benchmarks.load.node import Node
from benchmarks.load.part import Promise, Result, Stage, p

#: A turn of ten seconds at some twelve words of 50 letters a second, as fast as people read.
_REPLY = "The river took the bridge on the sixth day, and nobody has crossed it since. " * 6
_STEP_MS = 20.0
_PER_ROOM = 50
_WARM_S = 4.0
#: A slot for every room, so that no line waits for the engine, and sockets alone are the limit.
_ENGINE = {"max_num_seqs": 64, "max_num_batched_tokens": 512}
_FELT_MS = 250.0


async def run(stage: Stage, levels: list[int], measure_s: float) -> Result:
    """For each number of clients: rooms of 50, in each of which one NPC always speaks."""
    rows = []
    for clients in levels:
        rows.append(await _level(stage, clients, measure_s))
        stage.say(f"{clients:,} clients: {rows[-1]['deltas/s']:,.0f} deltas/s")
    felt = ("gap p99, ms", "loop lag p99, ms", "TTFT p50, ms")
    good = [row for row in rows if all(row[name] < _FELT_MS for name in felt)]
    return Result(
        "talk",
        {"levels": levels, "measure_s": measure_s, "per_room": _PER_ROOM},
        [
            Promise(
                "most clients with gaps, loop lag and first word below 250 ms",
                max((row["clients"] for row in good), default=0),
                max(levels),
                most=False,
            ),
        ],
        rows,
        [
            "Deltas of 33 ms; each client gets all speech of its room. Late: from when a delta is "
            "made to when a client has it. Guests run on the same cores as the node.",
        ],
    )


async def _level(stage: Stage, clients: int, measure_s: float) -> dict[str, float]:
    folder = stage.folder / str(clients)
    node = await stage.node(Node(folder, [_REPLY], _STEP_MS, engine=_ENGINE))
    buses = [await stage.bus() for _ in range(2)]
    half = max(_PER_ROOM, clients // 2 // _PER_ROOM * _PER_ROOM)
    stage.say(f"{clients:,} clients come in")
    for number, count in enumerate((half, clients - half)):
        if count:
            wish = {
                "prefix": f"t{number}x",
                "scene": "inn",
                "per_room": _PER_ROOM,
                "npcs": ["mira"],
            }
            opened = await buses[number].do("open", port=node.port, count=count, **wish)
            assert opened["ready"] == count, opened
    await everybody(buses, "talk")
    await asyncio.sleep(_WARM_S)
    await everybody(buses, "report")
    before, cpu, began = await node.gauges(), node.cpu_s(), time.monotonic()
    await asyncio.sleep(measure_s)
    seen = await everybody(buses, "report")
    after, seconds = await node.gauges(), time.monotonic() - began
    used = node.cpu_s() - cpu
    firsts = [ms for values in seen["firsts"].values() for ms in values]
    deltas = after["deltas_out"] - before["deltas_out"]
    for bus in buses:
        await bus.stop()
    node.kill()
    return {
        "clients": clients,
        "deltas/s": seen["deltas"] / seen["seconds"],
        "chunks a delta": (after["chunks_out"] - before["chunks_out"]) / max(1, deltas),
        "late p50, ms": p(seen["late"], 0.5),
        "late p99, ms": p(seen["late"], 0.99),
        "gap p99, ms": p(seen["gaps"], 0.99),
        "TTFT p50, ms": p(firsts, 0.5),
        "loop lag p99, ms": after["loop_lag_ms_p99"],
        "node, cores": used / seconds,
        "guests, cores": seen["cpu_s"] / seen["seconds"],
        "stalled": after.get("stalled", 0),
    }
