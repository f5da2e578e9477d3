"""`troupe quests` says what there is or what is wrong, and draws."""

from pathlib import Path

from typer.testing import CliRunner

from gameserver.cli import cli
from tests.npc.quests.packs import GRIFFIN, QUEST, write

run = CliRunner().invoke


def test_a_pack_is_checked() -> None:
    done = run(cli, ["quests", "check", str(GRIFFIN)])
    assert done.exit_code == 0, done.output
    assert "light_in_the_mill 5 stages, endings bad, good, shared by the scene" in done.output


def test_a_mistake_is_one_line_with_its_place(tmp_path: Path) -> None:
    folder = write(tmp_path, QUEST.replace("to: lost}", "to: nowhere}"))
    done = run(cli, ["quests", "check", str(folder)])
    assert done.exit_code == 1
    assert done.output.count("\n") == 1
    assert "mill.yaml:11: stages gone: leads to 'nowhere'" in done.output


def test_a_quest_is_drawn(tmp_path: Path) -> None:
    folder = str(write(tmp_path))
    assert run(cli, ["quests", "draw", folder]).output.startswith("stateDiagram-v2")
    assert run(cli, ["quests", "draw", folder, "--form", "dot"]).output.startswith("digraph")
    assert run(cli, ["quests", "draw", folder, "mill", "--form", "svg"]).output.startswith("<svg")
    done = run(cli, ["quests", "draw", folder, "well"])
    assert done.exit_code == 1
    assert "name one of the quests" in done.output
