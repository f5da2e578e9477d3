"""The doctor names what is missing, what that costs and how to fix it, and changes nothing."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gameserver.cli import cli
from gameserver.doctor import Finding, Machine, as_json, examine, healthy
from gameserver.settings import Settings
from tests.gameserver.stage import settings_with, write_pack

WELL = Machine(
    cpu_flags=lambda: frozenset({"avx2", "avx512bw", "avx512_vnni", "avx512_bf16"}),
    has_module=lambda name: True,
    gpu=lambda: "",
    free_memory=lambda: 8 * 10**9,
    free_disk=lambda folder: 50 * 10**9,
)


def look(tmp_path: Path, settings: Settings | None = None, **changes: Any) -> dict[str, Finding]:
    chosen = settings or settings_with(console_port=0)
    findings = examine(chosen, tmp_path, replace(WELL, **changes))
    for finding in findings:
        assert (finding.state == "ok") == (finding.costs == "")
    return {finding.name: finding for finding in findings}


def test_a_machine_with_everything_is_well(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert {name for name, finding in found.items() if finding.state != "ok"} == {"model"}
    assert "fetches 93 MB" in found["model"].costs
    assert not list(tmp_path.iterdir()), "nothing was made"
    assert "7 NPCs" in found["scenes"].found


@pytest.mark.parametrize(
    ("change", "name", "word"),
    [
        ({"cpu_flags": lambda: frozenset({"avx2"})}, "processor", "AVX-512"),
        ({"cpu_flags": lambda: frozenset({"avx512bw"})}, "processor", "numerics: bf16"),
        ({"has_module": lambda name: name != "numba"}, "numba", "-m pip install 'numba'"),
        (
            {"gpu": lambda: "H200", "has_module": lambda name: name != "triton"},
            "GPU",
            "troupe-npc[gpu]",
        ),
        ({"free_memory": lambda: 3 * 10**8}, "memory", "kv_cache_bytes"),
        ({"free_disk": lambda folder: 10**8}, "disk", "--data"),
    ],
)
def test_what_is_missing_has_a_price_and_a_remedy(
    tmp_path: Path, change: dict[str, Any], name: str, word: str
) -> None:
    finding = look(tmp_path, **change)[name]
    assert finding.state == "missing"
    assert word in finding.fix


def test_what_keeps_a_server_from_starting_is_broken(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "pack")
    (pack / "npcs" / "mira.yaml").write_text("id: mira\nname: 7\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = settings_with(
            port=port, console_port=0, model="nowhere.gguf", scenes=(str(pack),)
        )
        findings = examine(settings, tmp_path, WELL)
    broken = {finding.name: finding for finding in findings if finding.state == "broken"}
    assert set(broken) == {"game port", "model", "scenes"}
    assert "--port" in broken["game port"].fix
    assert "mira.yaml:2" in broken["scenes"].found
    assert not healthy(findings)
    assert as_json(findings)["ok"] is False


@pytest.mark.parametrize(
    ("model", "state"),
    [("org/name", "missing"), ("org/here", "ok"), ("script:gone.json", "broken")],
)
def test_models_are_looked_for_where_serve_would(tmp_path: Path, model: str, state: str) -> None:
    (tmp_path / "hub" / "models--org--here").mkdir(parents=True)
    found = look(tmp_path, settings_with(console_port=0, model=model))
    assert found["model"].state == state


def test_the_command_ends_with_what_it_found_and_speaks_json(tmp_path: Path) -> None:
    config = tmp_path / "troupe.yaml"
    config.write_text("port: 0\nconsole_port: 0\nmodel: nowhere.gguf\n")
    arguments = ["doctor", "--config", str(config), "--data", str(tmp_path)]
    told = CliRunner().invoke(cli, [*arguments, "--json"])
    assert told.exit_code == 1
    report = json.loads(told.output)
    assert report["ok"] is False
    assert {"name", "state", "found", "costs", "fix"} == set(report["findings"][0])
    config.write_text("port: 0\nconsole_port: 0\n")
    told = CliRunner().invoke(cli, arguments)
    assert told.exit_code == 0
    assert "fix:" in told.output
    assert f"{tmp_path / 'worlds.sqlite'} is made at the start" in told.output
    config.write_text("prot: 0\n")
    assert CliRunner().invoke(cli, arguments).exit_code == 1
