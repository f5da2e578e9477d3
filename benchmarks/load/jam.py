"""Jam: hostile sockets by the hundred, and whether others get in and are heard meanwhile.

Run as a module it is the hostile side: KIND PORT COUNT SECONDS.
"""

import asyncio
import contextlib
import itertools
import sys
import time
from typing import Any

from benchmarks.load.node import Node
from benchmarks.load.part import Promise, Result, Stage, p
from gameserver.http.patience import open_many_files
from tests.gameserver.player import Player
from tests.gameserver.raw import PING, TEXT, RawClient, frame, upgrade_request

_REPLY = "The river took the bridge on the sixth day, and nobody has crossed it since. " * 6
_SLOW_HEADS = (
    b"",
    b"GET /v1/ws HTTP/1.1\r\nHost: ",
    b"GET /v1/ws HTTP/1.1\r\n" + b"X: y\r\n" * 500,
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n",
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
)
#: What is sent again and again, after an upgrade.
_FLOODS = {
    "fragments": frame(TEXT, fin=False) + frame(0, fin=False) * 500,
    "tiny messages": frame(TEXT, b"{}") * 200,
    "pings, never read": frame(PING, b"x" * 125) * 100,
}
KINDS = {"slow handshakes": 500, "fragments": 200, "tiny messages": 200, "pings, never read": 20}


async def run(stage: Stage, seconds: float, share: float) -> Result:
    """Each kind for so many seconds, by `share` of the sockets that it has at full size."""
    rows = [await _jam(stage, kind, max(1, int(KINDS[kind] * share)), seconds) for kind in KINDS]
    return Result(
        "jam",
        {"seconds": seconds, "share": share},
        [
            Promise(
                "a good client's way in, p50", max(r["way in p50, ms"] for r in rows), 100, "ms"
            ),
            Promise("event loop lag p99", max(r["loop lag p99, ms"] for r in rows), 250, "ms"),
            Promise("memory", max(r["grown, MB"] for r in rows), 20, "MB"),
        ],
        rows,
        ["Way in: from connect to welcome. Bystander: a heartbeat and its answer."],
    )


async def _jam(stage: Stage, kind: str, count: int, seconds: float) -> dict[str, Any]:
    node = await stage.node(Node(stage.folder / kind.replace(" ", "-"), [_REPLY], 20.0))
    ann = await Player.enter(node, "ann")  # type: ignore[arg-type]
    base_mb = node.rss_mb()
    stage.say(f"{count} × {kind}")
    jammer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.load.jam", kind, str(node.port), str(count), str(seconds)
    )
    beats: list[float] = []
    ways: list[float] = []
    for number in itertools.count():
        if jammer.returncode is not None:
            break
        beats.append(await _timed(ann.ask("heartbeat")))
        if number % 5 == 0:
            ways.append(await _timed(_visit(node, f"good-{number}")))
        await asyncio.sleep(0.1)
    gauges = await node.gauges()
    row = {
        "kind": kind,
        "sockets": count,
        "way in p50, ms": p(ways, 0.5),
        "way in worst, ms": max(ways, default=0.0),
        "bystander p99, ms": p(beats, 0.99),
        "loop lag p99, ms": gauges["loop_lag_ms_p99"],
        "opened": gauges["connections_opened"],
        "refused": gauges.get("handshakes_refused", 0),
        "grown, MB": node.rss_mb() - base_mb,
        "errors": gauges.get("errors_internal", 0),
    }
    node.kill()
    return row


async def _timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


async def _visit(node: Node, name: str) -> None:
    """Come in, trying again where the server asks for that, and go."""
    while True:
        with contextlib.suppress(Exception):
            player = await Player.dial(node, name)  # type: ignore[arg-type]
            await player.identify()
            await player.socket.close()
            return


async def _hostile(kind: str, port: int, number: int, until: float) -> None:
    """One socket's worth of it, opened again whenever it is closed."""
    while time.monotonic() < until:
        writer = None
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(max(0.01, until - time.monotonic())):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                if kind == "slow handshakes":
                    writer.write(_SLOW_HEADS[number % len(_SLOW_HEADS)])
                    while not reader.at_eof():
                        writer.write(b"x")
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(1.0):
                                await reader.read(1 << 16)
                else:
                    writer.write(upgrade_request())
                    await RawClient(reader, writer).head()
                    if "never read" in kind:
                        writer.transport.pause_reading()  # type: ignore[attr-defined]
                    while not writer.transport.is_closing() and not reader.at_eof():
                        writer.write(_FLOODS[kind])
                        await writer.drain()
                        await asyncio.sleep(0.01)
        if writer is not None:
            writer.transport.abort()
        await asyncio.sleep(0.1)


async def _all(kind: str, port: int, count: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    await asyncio.gather(*(_hostile(kind, port, number, until) for number in range(count)))


if __name__ == "__main__":
    open_many_files()
    asyncio.run(_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
