"""The API and the game port have one purse for each address: who floods one has no more at the
other, and other addresses notice nothing.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from gameserver.app import Application
from tests.gameserver.node import node_on_script, running
from tests.gameserver.player import Player

HERE, THERE = "203.0.113.9", "198.51.100.1"
QUESTION = {"model": "default", "prompt": "Well?", "max_tokens": 1}


@asynccontextmanager
async def behind_a_proxy(folder: Path, **limits: Any) -> AsyncIterator[Application]:
    guards = {"trusted_proxies": ["127.0.0.1/32"]}
    async with running(node_on_script(folder, ["Yes."], guards=guards, limits=limits)) as node:
        yield node


async def ask(node: Application, address: str, method: str = "POST", **body: Any) -> httpx.Response:
    headers = {"x-forwarded-for": address}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.console_port}/v1") as http:
        if method == "GET":
            return await http.get("/models", headers=headers)
        return await http.post("/completions", headers=headers, json=QUESTION | body)


async def test_requests_of_an_address_take_what_its_players_lines_take(tmp_path: Path) -> None:
    slow = {"says_burst_per_ip": 2, "says_per_s_per_ip": 0.01}
    async with behind_a_proxy(tmp_path, **slow) as node:
        assert node.game is not None
        ann = await Player.dial(node.game, additional_headers={"X-Forwarded-For": HERE})
        await ann.identify()
        ann.stream = (await ann.ask("scene.join", {"scene": "gilded_griffin"}))["st"]
        assert (await ann.say(npc=""))["t"] == "say.accepted"
        assert (await ask(node, HERE)).status_code == 200
        refused = await ask(node, HERE)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 50
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await ann.say(npc=""))["d"]["code"] == "rate_limited"
        assert (await ask(node, HERE, "GET")).status_code == 200
        assert (await ask(node, THERE)).status_code == 200


async def test_so_do_messages_and_their_bytes(tmp_path: Path) -> None:
    few = {"messages_burst_per_ip": 3, "messages_per_s_per_ip": 0.01}
    async with behind_a_proxy(tmp_path, **few) as node:
        codes = [(await ask(node, HERE, "GET")).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        assert (await ask(node, HERE)).status_code == 429
        assert (await ask(node, THERE)).status_code == 200
    small = {"bytes_burst_per_ip": 1000, "bytes_per_s_per_ip": 1.0}
    async with behind_a_proxy(tmp_path, **small) as node:
        assert (await ask(node, HERE, user="x" * 2000)).status_code == 200, "more takes all"
        assert (await ask(node, HERE)).status_code == 429


async def test_nobody_of_this_machine_is_counted(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path, says_burst_per_ip=1, says_per_s_per_ip=0.01) as node:
        for _ in range(3):
            assert (await ask(node, "127.0.0.1")).status_code == 200
