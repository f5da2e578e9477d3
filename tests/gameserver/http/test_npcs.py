"""The console shows NPCs to those it is meant for."""

from pathlib import Path

import httpx
import pytest

from gameserver.http.console import Console
from gameserver.http.openai.api import OpenAIApi
from gameserver.keys import Keys, key_line, new_key
from gameserver.settings import ApiSettings
from tests.gameserver.http.test_console import FakeNode, console
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving

PATHS = (
    "/console/npcs",
    "/console/memories/ann/mira",
    f"/console/npcs/{SCENE}/mira",
    "/debug/prompts/t1",
)


def client(node: FakeNode, keys: Keys | None = None, peer: str = "127.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=console(node, keys).app, client=(peer, 5000))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8780")


async def test_the_pages_show_scenes_and_npcs_as_json(tmp_path: Path) -> None:
    async with serving(tmp_path, ["Hm."], inspect=True) as server:
        ann = await Player.enter(server)
        await ann.hear("Hello.")
        node = FakeNode()
        node.inspector = server.inspector
        async with client(node) as http:
            (scene,) = (await http.get("/console/npcs")).json()["scenes"]
            assert [npc["name"] for npc in scene["npcs"]] == ["Mira", "Harn"]
            reply = await http.get(f"/console/npcs/{SCENE}/mira")
            assert reply.headers["content-type"] == "application/json"
            assert reply.json()["prompts"][0]["parts"][2]["text"].endswith("ann: Hello.\nA:")
            missing = await http.get(f"/console/npcs/{SCENE}/nobody")
            assert (missing.status_code, missing.json()["error"]) == (
                404,
                "no running scene inn with an NPC nobody",
            )


async def test_before_the_node_is_up_there_is_nothing_to_show() -> None:
    async with client(FakeNode()) as http:
        assert (await http.get("/console/npcs")).status_code == 503


@pytest.mark.parametrize("path", PATHS)
async def test_without_keys_only_this_machine_is_answered(path: str) -> None:
    async with client(FakeNode(), peer="192.0.2.7") as http:
        assert (await http.get(path)).status_code == 403
    async with client(FakeNode()) as http:
        assert (await http.get(path)).status_code in (404, 503)
        for header in ("x-forwarded-for", "forwarded"):
            assert (await http.get(path, headers={header: "192.0.2.7"})).status_code == 403
        foreign = await http.get(path, headers={"origin": "http://elsewhere.example"})
        assert foreign.status_code == 403


@pytest.mark.parametrize("path", PATHS)
async def test_a_name_that_merely_resolves_to_us_is_not_this_machine(path: str) -> None:
    """A console for the whole network answers by any name, so a web page whose own name points to
    127.0.0.1 (DNS rebinding) has the right origin there. It sees no words, and halts nothing."""
    node = FakeNode()
    app = Console(node, "0.0.0.0", OpenAIApi(node, ApiSettings(), Keys({}))).app
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 5000))
    async with httpx.AsyncClient(transport=transport, base_url="http://evil.example:8780") as http:
        assert (await http.get(path)).status_code == 403
        for switch in ("/halt", "/release", "/reload"):
            assert (await http.post(switch)).status_code == 403
        by_its_name = await http.get(path, headers={"host": "localhost:8780"})
        assert by_its_name.status_code in (404, 503)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("peer", ["127.0.0.1", "192.0.2.7"])
async def test_with_keys_everybody_needs_one(tmp_path: Path, path: str, peer: str) -> None:
    key, file = new_key(), tmp_path / "keys"
    file.write_text(key_line("ops", key))
    async with client(FakeNode(), Keys.load(str(file), None), peer) as http:
        for wrong in ({}, {"authorization": f"Bearer {new_key()}"}):
            assert (await http.get(path, headers=wrong)).status_code == 401
        right = await http.get(path, headers={"authorization": f"Bearer {key}"})
        assert right.status_code in (404, 503)
