"""A node reads its rules for speech again with its scenes; bad rules change nothing."""

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gameserver.app import Application
from gameserver.visitor import Visitor
from npc.safety.rules import RulesError
from tests.gameserver.node import node_on_script, running


def rule(**changes: Any) -> str:
    entry = {"id": "stew", "action": "replace", "words": ["stew"], "with": "pie", **changes}
    return json.dumps({"rules": [entry]})


def node_with(folder: Path, file: Path) -> Application:
    node = node_on_script(folder, ["The stew is hot."])
    safety = msgspec.structs.replace(node.settings.safety, filter_file=str(file))
    node.settings = msgspec.structs.replace(node.settings, safety=safety)
    return node


async def said(node: Application) -> str:
    async with Visitor.connected(f"ws://127.0.0.1:{node.game_port}", "Ada") as ada:
        await ada.join(None, greet=False)
        await ada.command("say", {"npc": "mira", "text": "Well?"})
        async for message in ada.messages():
            if message["t"] == "npc.turn.end":
                return str(message["d"]["text"])
    raise AssertionError("no answer")


async def test_rules_follow_their_file_and_a_mistake_in_it_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(rule(), "utf-8")
    async with (
        running(node_with(tmp_path, file)) as node,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.console_port}") as http,
    ):
        assert await said(node) == "The pie is hot."
        file.write_text(rule(action="shout"), "utf-8")
        answer = await http.post("/reload")
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        assert fault["file"] == str(file)
        assert "shout" in fault["problem"]
        assert await said(node) == "The pie is hot."
        file.write_text(rule(**{"with": "soup"}), "utf-8")
        assert (await http.post("/reload")).status_code == 200
        assert await said(node) == "The soup is hot."


async def test_a_node_with_bad_rules_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(rule(words=[]), "utf-8")
    with pytest.raises(RulesError, match="needs words or patterns"):
        async with running(node_with(tmp_path, file)):
            pass
