"""Ends without a word, at random moments, under load: nothing that was accepted is lost, no number
stands for two events, and every turn that began ends once."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.gameserver.crowd import Talker, agree, all_were_heard
from tests.gameserver.process import Process
from tests.gameserver.stage import write_pack
from tests.gameserver.test_restart import Crashing

FREE = {"limits": {"says_per_s": 1000.0, "says_burst": 1000, "messages_per_s": 1000.0}}
REPLY = "The bridge is gone. Nobody leaves tonight."


@pytest.mark.timeout(300)
async def test_crashes_at_random_moments(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In one process: a crash as far as store and sockets can tell."""
    for seed in range(max(1, request.config.getoption("--seeds") // 4)):
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        node = Crashing(folder, [REPLY], flow={"resume_s": 30.0}, store={"checkpoint_ms": 20})
        await node.start(step_ms=0.5)
        where = Running(node)
        talkers = [Talker([where], name, seed) for name in ("ann", "bob", "cid")]
        stop = asyncio.Event()
        lives = asyncio.gather(*(talker.live(stop) for talker in talkers))
        for _ in range(3):
            await asyncio.sleep(dice.uniform(0.05, 0.5))
            await node.crash()
            await node.start(step_ms=0.5)
        stop.set()
        async with asyncio.timeout(120):
            await lives
        await settle(talkers)
        agree(talkers)
        await node.stop()


class Running:
    """The server that a crashing node has just now."""

    def __init__(self, node: Crashing) -> None:
        self._node = node

    @property
    def port(self) -> int:
        return self._node.server.port


async def settle(talkers: list[Talker]) -> None:
    """Hear everything that is still to come."""
    for _ in range(200):
        before = sum(len(talker.log) for talker in talkers)
        for talker in talkers:
            await talker._come_back(asyncio.Event())
            await talker._listen()
            while talker._raw is not None and talker._raw.reader._buffer:
                await talker.receive()
        started = {m["d"]["turn"] for t in talkers for m in t.log if m["t"] == "npc.turn.start"}
        ended = {turn for talker in talkers for turn in talker.ended}
        if started == ended and before == sum(len(talker.log) for talker in talkers):
            return


@pytest.mark.timeout(240)
async def test_a_process_is_killed_under_load(tmp_path: Path) -> None:
    """The same with a real process and SIGKILL."""
    pack = write_pack(tmp_path / "pack")
    settings = {"scenes": [str(pack)], "data": str(tmp_path / "data"), **FREE}
    process = await Process(tmp_path, [REPLY], 0.5, **settings).start()
    talkers = [Talker([process], name, 0) for name in ("ann", "bob", "cid")]
    stop = asyncio.Event()
    lives = asyncio.gather(*(talker.live(stop) for talker in talkers))
    try:
        for seconds in (0.7, 0.31):
            await asyncio.sleep(seconds)
            process.kill()
            await process.start()
        await all_were_heard(talkers, 3)
        stop.set()
        async with asyncio.timeout(150):
            await lives
        await settle(talkers)
        agree(talkers)
        assert await process.terminate() == 0
    finally:
        lives.cancel()
        process.kill()
