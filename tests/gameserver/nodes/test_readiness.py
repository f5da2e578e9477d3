"""Whoever balances players over nodes sees which ones cannot serve them just now."""

import asyncio
import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.gameserver.process import Process
from tests.gameserver.stage import write_pack
from tests.gameserver.stores.redis_server import RedisServer


def readyz(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.timeout(60)
async def test_a_node_whose_leases_are_not_renewed_takes_no_players(
    tmp_path: Path, redis: RedisServer
) -> None:
    pack = str(write_pack(tmp_path / "pack"))
    store = {"lease_s": 0.6}
    node = await Process(tmp_path, ["x"], 1.0, redis=redis.url, scenes=[pack], store=store).start()

    async def until(status: int) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while (found := await asyncio.to_thread(readyz, node.console))[0] != status:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return found[1]

    try:
        assert await until(200) == {"ready": True, "state": "ready"}
        redis.signal(signal.SIGSTOP)
        try:
            waiting = await until(503)
        finally:
            redis.signal(signal.SIGCONT)
        assert waiting["ready"] is False
        assert "store" in waiting["hindrance"]
        assert await until(200) == {"ready": True, "state": "ready"}
    finally:
        node.kill()
