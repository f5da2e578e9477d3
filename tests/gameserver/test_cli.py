"""The command line helps, and says in one line what is wrong."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_group
from typer.testing import CliRunner

from gameserver.cli import cli
from gameserver.folders import user_cache_folder
from gameserver.http.listener import bind
from gameserver.packs import CannotFind, find_packs

TROUPE = (sys.executable, "-m", "gameserver.cli")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TROUPE, *arguments], capture_output=True, text=True, timeout=60)


def test_without_a_command_there_is_help() -> None:
    result = CliRunner().invoke(cli, [])
    assert result.exit_code == 0
    assert "serve" in result.output
    assert "talk" in result.output


def test_help_names_every_option() -> None:
    output = CliRunner().invoke(cli, ["serve", "--help"], env={"COLUMNS": "200"}).output
    for option in ("--host", "--port", "--console-port", "--model", "--config", "--scenes"):
        assert option in output
    assert "--inspect" in output
    assert "--data" in output


def commands(group: TyperGroup, *before: str) -> Iterator[tuple[str, ...]]:
    yield before
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *before, name)
        else:
            yield (*before, name)


@pytest.mark.parametrize("words", list(commands(get_group(cli))), ids=" ".join)
def test_help_says_what_options_take_as_a_person_would(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*words, "--help"], env={"COLUMNS": "160"})
    assert result.exit_code == 0
    assert not re.search(r"<\w|\[\d*<?=?x|bool\b|\bint\b|\bstr\b|\brange\b", result.output)


def test_help_and_talk_do_not_wait_for_torch() -> None:
    code = "import sys, gameserver.cli, gameserver.talk; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("yaml", "part"),
    [
        ("port: many", "port"),
        ("prot: 1", "prot"),
        ("- a\n- b", "object"),
        ("a: [", "yaml:1: expected"),
    ],
)
def test_a_wrong_settings_file_gives_one_line(tmp_path: Path, yaml: str, part: str) -> None:
    file = tmp_path / "troupe.yaml"
    file.write_text(yaml)
    result = run("serve", "--config", str(file))
    assert result.returncode == 1
    assert "troupe.yaml" in result.stderr
    assert part in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_taken_port_gives_one_line() -> None:
    with bind("127.0.0.1", 0, "") as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--console-port", str(port))
    assert result.returncode == 1
    assert f"127.0.0.1:{port}" in result.stderr
    assert "--console-port" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_address_that_is_none_is_named_with_its_reason() -> None:
    with pytest.raises(OSError, match=r"nowhere\.invalid:0: (?!Unknown)[A-Z].*--host"):
        bind("nowhere.invalid", 0, "--host")


def test_an_option_out_of_range_gives_one_line() -> None:
    result = run("serve", "--port", "70000")
    assert result.returncode == 1
    assert "--port" in result.stderr


def test_a_profile_that_cannot_be_written_is_told_before_the_start() -> None:
    result = run("serve", "--profile", "/no/such/folder/run.txt")
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "cannot write /no/such/folder/run.txt" in result.stderr


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output.startswith("troupe 0.")


def test_talk_without_a_server_gives_one_line() -> None:
    with bind("127.0.0.1", 0, "") as closed:
        port = closed.getsockname()[1]
    result = run("talk", "--url", f"ws://127.0.0.1:{port}", "--once", "mira", "Hello")
    assert result.returncode == 1
    assert "`troupe serve`, or name its game port with --url" in result.stderr


def test_packs_are_found_alone_or_in_a_folder(tmp_path: Path) -> None:
    for name in ("inn", "mill"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scene.yaml").write_text("")
    assert find_packs((str(tmp_path / "inn"),)) == (tmp_path / "inn",)
    assert find_packs((str(tmp_path),)) == (tmp_path / "inn", tmp_path / "mill")
    with pytest.raises(CannotFind, match=r"scene\.yaml"):
        find_packs((str(tmp_path / "nowhere"),))


def test_the_default_pack_and_data_folder_exist_anywhere() -> None:
    (tavern,) = find_packs(())
    assert (tavern / "scene.yaml").is_file()
    assert user_cache_folder().is_absolute()


@pytest.mark.model
def test_serve_says_where_it_is_talks_and_ends_with_zero(
    cache_dir: Path, default_model_path: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    script.write_text("[[504, 506]]")
    command = [*TROUPE, "serve", "--port", "0", "--console-port", "0", "--models", str(cache_dir)]
    with subprocess.Popen(
        [*command, "--model", f"script:{script}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    ) as server:
        assert server.stdout is not None
        url = ""
        for line in server.stdout:
            if "Game port" in line:
                url = line.split()[-1]
            if line.strip().startswith("Scene"):
                break
        reply = run("talk", "--url", url, "--once", "mira", "Any rumours?")
        assert reply.returncode == 0, reply.stderr
        assert reply.stdout.strip()
        server.send_signal(signal.SIGTERM)
        time.sleep(0.02)  # `make` passes on what its whole process group was told already
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0


def test_a_signal_ends_a_start_that_still_downloads_and_leaves_nothing(tmp_path: Path) -> None:
    # An index that takes the connection and never answers.
    with bind("127.0.0.1", 0, "") as silent:
        environment = {key: os.environ[key] for key in os.environ if not key.startswith("PIP_")}
        environment |= {
            "PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/simple",
            "PIP_CONFIG_FILE": os.devnull,
        }
        command = [*TROUPE, "serve", "--port", "0", "--console-port", "0", "--data", str(tmp_path)]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        ) as server:
            assert server.stderr is not None
            for line in server.stderr:
                if "Fetching" in line:
                    break
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=20) == 0
    assert list((tmp_path / "models").iterdir()) == []
