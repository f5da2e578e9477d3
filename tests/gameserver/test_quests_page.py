"""The page about quests: its YAML is read, its commands run, its client plays."""

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gameserver.cli import cli
from gameserver.messages import QuestUpdate
from gameserver.settings import Settings
from tests.gameserver.nonsense import serving_nonsense
from tests.npc.quests.packs import GRIFFIN, read, write

PAGE = (Path(__file__).parents[2] / "docs" / "quests.md").read_text("utf-8")


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def inn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pack of the page, where its commands look for it."""
    monkeypatch.chdir(tmp_path)
    quest, listed, _ = examples("yaml")
    head = {"id": "inn", "title": "Inn", "text": "An inn.", "npcs": ["npcs/harn.yaml"]}
    scene = yaml.safe_dump({**head, **yaml.safe_load(listed)})
    folder = write(Path("my_scenes/inn"), scene=scene)
    (folder / "quests" / "well.yaml").write_text(quest, "utf-8")
    return folder


def test_the_quest_is_read_and_the_commands_run(inn: Path) -> None:
    assert read(inn)["well"].giver == "harn"
    for command in examples("sh")[0].splitlines():
        done = CliRunner().invoke(cli, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output


def test_a_mistake_is_told_as_the_page_says(inn: Path) -> None:
    file = inn / "quests" / "well.yaml"
    file.write_text(file.read_text("utf-8").replace("to: climbing", "to: climing", 1), "utf-8")
    done = CliRunner().invoke(cli, ["quests", "check", "my_scenes/inn"])
    assert done.exit_code == 1
    assert done.output.split() == examples("text")[0].split()


def test_the_message_has_the_fields_of_the_page() -> None:
    shown: dict[str, Any] = json.loads(examples("json")[0])
    assert set(shown["d"]) | {"scene"} == set(QuestUpdate.__struct_fields__)


def test_the_setting_is_one(tmp_path: Path) -> None:
    (tmp_path / "troupe.yaml").write_text(examples("yaml")[2])
    assert Settings.load(tmp_path / "troupe.yaml").replies.urgent_by_quest


async def test_the_client_of_the_page_plays_to_the_good_end() -> None:
    known: dict[str, Any] = {}
    exec(compile(examples("python")[0], "docs/quests.md", "exec"), known)
    async with serving_nonsense(GRIFFIN) as server:
        url = f"ws://127.0.0.1:{server.port}/v1/ws"
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(known["play"], url) == "good"
