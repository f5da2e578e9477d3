"""What keeping costs: the event loop's part of an event, a commit, and a whole turn, by store.

`python -m benchmarks.store [--redis URL] [--out FILE]`; Redis only where an address is given.
"""

import argparse
import asyncio
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from engine.api import AsyncEngine
from engine.percentile import percentile
from gameserver.game import GameServer
from gameserver.messages import PlayerSaid
from gameserver.settings import Settings
from gameserver.stores.choose import choose_store
from gameserver.stores.journal import Book, Journal
from gameserver.stores.store import Holding
from gameserver.streams import Stream
from gameserver.tally import Tally
from npc.cast import Cast
from tests.gameserver.player import Player
from tests.gameserver.stage import byte_model, settings_with, write_pack

EVENTS = 2000
TURNS = 60
REPLY = "The bridge is gone. Nobody leaves tonight."


async def events(settings: Settings) -> dict[str, float]:
    """Microseconds in which the loop writes an event, and milliseconds until a lone one is kept."""
    store = choose_store(settings)
    await store.open()
    journal = Journal(store, Tally())
    journal.start()
    held = await store.claim("bench", lease=False)
    assert isinstance(held, Holding)
    stream = Stream("bench", held.epoch, settings.flow, Book("bench", journal, held))
    body = PlayerSaid("m-0123456789abcdef", "ann", "A line of about forty characters, say.", "mira")
    began = time.perf_counter()
    for number in range(EVENTS):
        stream.append("player.said", body)
        if number % 10 == 9:
            await asyncio.sleep(0)
    written = time.perf_counter() - began
    await journal.settled()
    alone = []
    for _ in range(200):
        began = time.perf_counter()
        journal.begin()
        stream.append("player.said", body)
        await journal.settled()
        alone.append((time.perf_counter() - began) * 1000)
    await journal.stop()
    await store.close()
    return {
        "loop": written / EVENTS * 1e6,
        "kept": statistics.median(alone),
        "kept_p99": percentile(alone, 99),
    }


async def turns(settings: Settings, folder: Path) -> dict[str, float]:
    """Milliseconds from a line to the start of its turn, to the first word, and to the end."""
    store = choose_store(settings)
    await store.open()
    config = msgspec.structs.replace(settings.engine, script_step_ms=1.0)
    engine = AsyncEngine(byte_model([REPLY]), config)
    await engine.start()
    cast = Cast(engine, settings.replies)
    await cast.open(write_pack(folder / "pack"))
    server = GameServer(cast, settings, store=store)
    await server.start()
    ann = await Player.enter(server)
    starts, firsts, ends = [], [], []
    for _ in range(TURNS):
        began = time.perf_counter()
        await ann.send("say", {"npc": "mira", "text": "Hello?"}, st="inn", id=ann._last_id + 1)
        ann._last_id += 1
        for t, times in (("npc.turn.start", starts), ("npc.delta", firsts), ("npc.turn.end", ends)):
            await ann.get(t)
            times.append((time.perf_counter() - began) * 1000)
    await server.close()
    await cast.close()
    await engine.stop()
    await store.close()
    return {
        "start": statistics.median(starts),
        "first": statistics.median(firsts),
        "end": statistics.median(ends),
    }


async def measure(name: str, wish: dict[str, Any]) -> str:
    """One row."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if name == "SQLite":
            wish = {"data": str(place / "data")}
        settings = settings_with(**wish)
        figures |= await events(settings)
        figures |= await turns(settings, place)
    f = figures
    return (
        f"| {name} | {f['loop']:.1f} | {f['kept']:.2f} | {f['kept_p99']:.2f} "
        f"| {f['start']:.1f} | {f['first']:.1f} | {f['end']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis")
    parser.add_argument("--out", type=Path)
    wish = parser.parse_args()
    rows = [asyncio.run(measure("memory", {})), asyncio.run(measure("SQLite", {}))]
    if wish.redis:
        settings = {"redis": wish.redis, "store": {"prefix": f"bench-{time.time_ns()}"}}
        rows.append(asyncio.run(measure("Redis", settings)))
    table = "\n".join(
        [
            "# What keeping costs",
            "",
            f"`python -m benchmarks.store`: {platform.machine()}; medians.",
            f"The turn: one player on loopback, {len(REPLY)} scripted tokens at 1 ms a step; its",
            "times are from sending the line to receiving the message.",
            "",
            "| store | writing an event, µs | a lone event is kept after, ms | p99 | "
            "turn.start, ms | first delta, ms | turn.end, ms |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
    print(table)
    if wish.out:
        wish.out.write_text(table, "utf-8")


if __name__ == "__main__":
    main()
