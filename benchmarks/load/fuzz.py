"""Fuzz: a million frames that no client sends; the node stays up, and its memory flat.

Run as a module it is a process that sends: SEED FIRST STEP FRAMES PORT. With `--again SEED NUMBER`
it starts a node, sends that one connection again, and shows what became of it.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.load.hostile import Script, script
from benchmarks.load.node import OPEN_DOORS, Node
from benchmarks.load.part import Promise, Result, Stage
from tests.gameserver.player import Player

#: So many bad messages that most of what is sent is looked at.
SETTINGS: dict[str, Any] = {
    "limits": {
        **OPEN_DOORS["limits"],
        "messages_per_s": 1e6,
        "messages_burst": 1_000_000,
        "bytes_per_s": 1e9,
        "bytes_burst": 1_000_000_000,
        "sessions_per_player": 40,
    },
    "guards": {"bad_messages": 1000, "linger_s": 0.0, "close_timeout_s": 0.5},
    "flow": {"resume_s": 1.0, "scene_idle_s": 5.0},
}
_SENDERS, _AT_ONCE = 2, 8
_PATIENCE_S = 30.0
_MOST_POINTS = 40


async def send(wanted: Script, port: int) -> None:
    """Send all that a connection sends, as far as the server takes it, and wait for its end.

    Raises:
        TimeoutError: the server neither reads nor closes.
        OSError: there is no server.
    """
    async with asyncio.timeout(_PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reading = asyncio.ensure_future(_read_all(reader))
        try:
            with contextlib.suppress(ConnectionError):  # it may have heard enough
                for piece in wanted.pieces:
                    writer.write(piece)
                    await writer.drain()
                writer.write_eof()
            await reading
        finally:
            reading.cancel()
            writer.transport.abort()


async def _read_all(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


async def run(stage: Stage, frames: int, seed: int, most_s: float) -> Result:
    """Send so many frames from several processes, for so long at most, watching the node."""
    node = await stage.node(Node(stage.folder / "node", ["Yes."], 1.0, **SETTINGS))
    ann = await Player.enter(node, "ann", instance="elsewhere")  # type: ignore[arg-type]
    deadline = time.monotonic() + most_s * 0.8
    senders = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.load.fuzz", str(seed), str(first), str(_SENDERS)),
            *(str(frames // _SENDERS), str(node.port)),
            stdout=asyncio.subprocess.PIPE,
        )
        for first in range(_SENDERS)
    ]
    progress: dict[int, dict[str, Any]] = {}
    watching = [asyncio.ensure_future(_watch(n, s, progress)) for n, s in enumerate(senders)]
    points: list[dict[str, float]] = []
    while not all(task.done() for task in watching) and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        sent = sum(state["frames"] for state in progress.values())
        if not node.alive:
            break
        points.append({"frames": sent, "RSS, MB": node.rss_mb()})
        stage.say(f"{sent:,} of {frames:,} frames, {points[-1]['RSS, MB']:.0f} MB")
    for sender in senders:
        with contextlib.suppress(ProcessLookupError):
            sender.kill()
    await asyncio.gather(*watching)
    open_ones = [number for state in progress.values() for number in state["open"]]
    stuck = [number for state in progress.values() for number in state["stuck"]]
    alive, gauges = node.alive, dict[str, float]()
    if alive:
        assert (await ann.ask("heartbeat", {"n": 7}))["d"]["n"] == 7
        gauges = await node.gauges()
    sent = int(points[-1]["frames"])
    late = [point for point in points if point["frames"] > sent / 2]
    growth = _slope(late) * 1e5
    log = node.errors()
    again = f"python -m benchmarks.load.fuzz --again {seed} NUMBER, with NUMBER of {open_ones}"
    notes = [
        f"Seed {seed}; {sum(state['connections'] for state in progress.values()):,} connections; "
        f"{gauges.get('frames_in', 0):,.0f} messages reached the protocol; loop lag p99 "
        f"{gauges.get('loop_lag_ms_p99', 0):.0f} ms.",
    ]
    if not alive or log:
        notes.append(f"Again: {again}. Log: {log[-1500:]!r}")
    if stuck:
        notes.append(f"Neither read nor closed: {stuck[:20]}")
    every = max(1, len(points) // _MOST_POINTS)
    return Result(
        "fuzz",
        {"frames": frames, "seed": seed},
        [
            Promise("frames sent", sent, frames, most=False),
            Promise(
                "ends of the node, and its own errors",
                (not alive) + bool(log) + gauges.get("errors_internal", 0),
                0.0,
            ),
            Promise("connections neither read nor closed", len(stuck), 0.0),
            Promise("growth of memory in the second half, a 100,000 frames", growth, 1.0, "MB"),
        ],
        points[::every] or points,
        notes,
    )


def _slope(points: list[dict[str, float]]) -> float:
    """Megabytes a frame, by least squares."""
    if len(points) < 3:
        return 0.0
    xs, ys = [p["frames"] for p in points], [p["RSS, MB"] for p in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((a - x) ** 2 for a in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread if spread else 0.0


async def _watch(
    number: int, sender: asyncio.subprocess.Process, progress: dict[int, dict[str, Any]]
) -> None:
    assert sender.stdout is not None
    progress[number] = {"frames": 0, "connections": 0, "open": [], "stuck": []}
    while line := await sender.stdout.readline():
        progress[number] = json.loads(line)


async def _send_all(seed: int, first: int, step: int, frames: int, port: int) -> None:
    """Be a sender: connections `first`, `first + step`, and so on."""
    state: dict[str, Any] = {"frames": 0, "connections": 0, "open": [], "stuck": []}
    numbers = iter(range(first, 1 << 60, step))
    told = 0.0

    async def work() -> None:
        nonlocal told
        while state["frames"] < frames:
            number = next(numbers)
            wanted = script(seed, number)
            state["open"].append(number)
            state["frames"] += wanted.frames
            state["connections"] += 1
            try:
                await send(wanted, port)
            except TimeoutError:
                state["stuck"].append(number)
            except OSError:
                return  # the node is gone, and what was open may be why
            state["open"].remove(number)
            if time.monotonic() - told > 0.5:
                told = time.monotonic()
                print(json.dumps(state), flush=True)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    print(json.dumps(state), flush=True)


async def _again(seed: int, number: int) -> None:
    """Send one connection to a node of its own."""
    with tempfile.TemporaryDirectory() as folder:
        node = await Node(Path(folder), ["Yes."], 1.0, **SETTINGS).start()
        try:
            wanted = script(seed, number)
            print(f"{wanted.kind}, {wanted.frames} frames")
            await send(wanted, node.port)
            await asyncio.sleep(0.5)
            print("alive" if node.alive else "dead", node.errors())
        finally:
            node.kill()


if __name__ == "__main__":
    if sys.argv[1] == "--again":
        asyncio.run(_again(int(sys.argv[2]), int(sys.argv[3])))
    else:
        asyncio.run(_send_all(*map(int, sys.argv[1:])))
