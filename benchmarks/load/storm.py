"""Storm: a node is killed, and everybody comes back at once."""

import asyncio
import signal
import time
from typing import Any

from benchmarks.load.crowd import Bus, everybody
from benchmarks.load.node import Node
from benchmarks.load.part import Promise, Result, Stage, p

_ROOMS = 20
_REPLY = "The river took the bridge on the sixth day."


async def run(stage: Stage, clients: int, most_s: float) -> Result:
    """Kill the node, then end it in good order; each time start it again from its store. One
    client in ten has no manners: it tries again at once."""
    data = {"data": str(stage.folder / "data")}
    node = await stage.node(Node(stage.folder / "node", [_REPLY], 20.0, **data))
    buses = [await stage.bus() for _ in range(2)]
    stage.say(f"{clients:,} clients come in")
    half = clients // 2
    for number, bus in enumerate(buses):
        wish = {"scene": "inn", "per_room": clients // _ROOMS, "rude": half // 10}
        opened = await bus.do("open", port=node.port, count=half, prefix=f"s{number}x", **wish)
        assert opened["ready"] == half, opened
    await everybody(buses, "come_back")
    rows = []
    for how in (signal.SIGKILL, signal.SIGTERM):
        rows.append(await _storm(stage, node, buses, how, half * 2, most_s))
    return Result(
        "storm",
        {"clients": clients, "rooms": _ROOMS},
        [
            Promise("all back", max(row["all back, s"] for row in rows), 30.0, "s"),
            Promise("sessions that were not resumed", sum(row["begun anew"] for row in rows), 0.0),
            Promise("most handshakes in flight", max(row["handshakes"] for row in rows), 256.0),
        ],
        rows,
        [
            "Times from the signal on, the start of the process included; SQLite. One in ten "
            "clients tries again every 50 ms, the others wait as the protocol asks (full jitter)."
        ],
    )


async def _storm(
    stage: Stage, node: Node, buses: list[Bus], how: signal.Signals, clients: int, most_s: float
) -> dict[str, Any]:
    await everybody(buses, "report")
    stage.say(f"{how.name}")
    began = time.monotonic()
    await asyncio.to_thread(node.end, how)
    await node.start()
    up_s = time.monotonic() - began
    peak, state = 0.0, {"ready": 0}
    while state["ready"] < clients and time.monotonic() - began < most_s:
        peak = max(peak, (await node.gauges())["handshakes"])
        state = await everybody(buses, "state")
        stage.say(f"{how.name}: {state['ready']:,} of {clients:,} are back")
        await asyncio.sleep(0.2)
    back_s = time.monotonic() - began
    seen = await everybody(buses, "report")
    gauges = await node.gauges()
    return {
        "signal": how.name,
        "process up, s": up_s,
        "half back, s": p(seen["returns"], 0.5),
        "all back, s": back_s if state["ready"] >= clients else float("inf"),
        "resumed": seen["resumed"],
        "begun anew": seen["anew"],
        "turned away (503)": gauges.get("handshakes_refused", 0),
        "handshakes": peak,
        "loop lag p99, ms": gauges["loop_lag_ms_p99"],
    }
