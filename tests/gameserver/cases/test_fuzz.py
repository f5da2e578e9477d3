"""The fuzz of `make load` in small: ten thousand frames, the same every time."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.load.fuzz import SETTINGS, send
from benchmarks.load.hostile import Script, script
from tests.gameserver.cases.oracle import unharmed
from tests.gameserver.stage import serving, until

FRAMES, SEED, AT_ONCE = 10_000, 7, 8


def scripts() -> list[Script]:
    """Connections with so many frames together."""
    found: list[Script] = []
    while sum(each.frames for each in found) < FRAMES:
        found.append(script(SEED, len(found)))
    return found


def test_a_seed_and_a_number_are_the_same_bytes_every_time() -> None:
    assert [script(SEED, number) for number in range(60)] == scripts()[:60]
    assert {each.kind for each in scripts()} == {"json", "msgpack", "frames", "http"}


async def test_frames_that_no_client_sends_harm_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each connection ends, none is left open, and nothing of ours fails (`errors_internal`)."""
    door = asyncio.Semaphore(AT_ONCE)

    async def send_one(wanted: Script, port: int) -> None:
        async with door:
            await send(wanted, port)

    async with serving(tmp_path, ["Yes."], step_ms=0.5, **SETTINGS) as server:
        moved = {"frames_in": FRAMES // 4, "closes_1002": 1, "closes_1007": 1}
        async with unharmed(server, moved=moved, caplog=caplog, bad_clients=0):
            await asyncio.gather(*(send_one(each, server.port) for each in scripts()))
            await until(lambda: server.gauges()["connections"] == 1)
            await until(lambda: server.gauges()["sessions"] == 1)
