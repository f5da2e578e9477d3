"""The page about cards: its commands run, its YAML is read."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gameserver.cli import cli
from npc.persona import read_personas
from scenes.pack import load_pack
from tests.npc.cards.published import card_png, raw, v2
from tests.scenes.packs import HARN, SCENE, write_pack

PAGE = (Path(__file__).parents[2] / "docs" / "cards.md").read_text("utf-8")


def example(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0]


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_pack(tmp_path / "tavern")
    (tmp_path / "orla.png").write_bytes(card_png(v2()))
    world = {"entries": {"0": {"key": ["ship"], "content": "A ship sank."}}}
    (tmp_path / "harbour.json").write_bytes(raw(world))
    for command in example("sh").splitlines():
        done = CliRunner().invoke(cli, shlex.split(command, comments=True)[1:])
        assert done.exit_code == 0, done.output
    assert (tmp_path / "orla" / "scene.yaml").exists()
    assert (tmp_path / "world.json").exists()


def test_the_lore_is_read(tmp_path: Path) -> None:
    lore = example("yaml")
    pack = load_pack(write_pack(tmp_path, SCENE + lore, harn=HARN + "factions: [watch]\n"))
    assert [entry.id for entry in pack.lore] == ["season", "password"]
    assert len(list(read_personas(pack))) == 2
