"""People see, export and delete what NPCs remember, of a server or in its folder."""

import asyncio
import contextlib
import io
import json
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from gameserver import memory_cli
from gameserver.cli import cli
from gameserver.diary import Person
from gameserver.folders import MEMORY_FILE
from gameserver.settings import Settings
from gameserver.stores.sqlite import FILE, SqliteStore
from gameserver.stores.store import Put, Unit
from npc.memory.book import Book
from npc.memory.records import Owner
from tests.gameserver.stage import write_pack
from tests.npc.memory.stage import ANNA, known, memory_settings

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder in which Mira remembers Anna and Bob."""
    folder = tmp_path / "data"
    book = Book(folder / MEMORY_FILE, memory_settings())
    known(book, "My horse [b]Biscuit[/b] is old.", present=["bob"])
    known(book, "I hide the key.", circle=frozenset({"anna"}))
    known(book, "I like rain.", owner=Owner("inn", "mira", "bob"))
    book.close()
    return folder


def run(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "200", "OPENAI_API_KEY": ""}).invoke(
        cli, ["memory", *map(str, words)]
    )


def test_whom_npcs_remember_and_what(data: Path) -> None:
    listed = run("list", "--data", data)
    assert listed.exit_code == 0
    assert re.search(r"inn +mira +anna +Anna +2 +2 ", listed.output)
    shown = run("show", "anna", "mira", "--data", data).output
    assert "My horse [b]Biscuit[/b] is old." in shown
    assert re.search(r"fact .* anna +I hide the key\.", shown)


def test_an_export_is_json_of_one_player(data: Path) -> None:
    exported = json.loads(run("export", "anna", "--data", data).output)
    assert exported["player"] == "anna"
    assert {memory["text"] for memory in exported["memories"]} == {
        "My horse [b]Biscuit[/b] is old.",
        "I hide the key.",
    }


def test_a_player_is_forgotten(data: Path) -> None:
    assert "0 records" in run("forget", "anna", "--npc", "harn", "--data", data).output
    assert "4 records deleted" in run("forget", "anna", "--data", data).output
    assert b"Biscuit" not in (data / MEMORY_FILE).read_bytes()
    assert "has no facts of anna" in run("show", "anna", "mira", "--data", data).output
    assert ANNA.player not in run("list", "--data", data).output


def test_worlds_beside_the_memory_forget_too(data: Path) -> None:
    """More of it: test_forgetting.py."""

    async def write() -> None:
        store = SqliteStore(data)
        await store.open()
        person = msgspec.msgpack.encode(Person("anna", "Anna", "", 0))
        await store.commit([Unit(1, {"session.s": 1}, [("session.s", Put("person", person))])])
        await store.close()

    asyncio.run(write())
    done = run("forget", "anna", "--data", data)
    assert "4 records deleted; scenes and sessions have forgotten, too" in done.output
    assert b"anna" not in (data / FILE).read_bytes()


def test_nothing_is_forgotten_in_a_folder_that_is_in_use(data: Path) -> None:
    with contextlib.closing(sqlite3.connect(data / FILE, isolation_level=None)) as server:
        server.execute("PRAGMA locking_mode=EXCLUSIVE")
        server.execute("BEGIN EXCLUSIVE")
        result = run("forget", "anna", "--data", data)
    assert result.exit_code == 1 and "in use by another server" in result.stderr
    assert ANNA.player in run("list", "--data", data).output


@pytest.fixture
def config(data: Path) -> Path:
    """The settings of a server of two games, of which Mira's inn is acme's; in bolt's mill she
    knows another Anna."""
    book = Book(data / MEMORY_FILE, memory_settings())
    known(book, "I sell eels.", owner=Owner("mill.7", "mira", "anna"))
    book.close()
    for scene in ("inn", "mill"):
        write_pack(data.parent / "packs" / scene, id=scene)
    file = data.parent / "troupe.yaml"
    tenants = {"acme": {"scenes": ["inn"]}, "bolt": {"scenes": ["mill"]}}
    packs = [str(data.parent / "packs")]
    file.write_text(
        yaml.safe_dump({"scenes": packs, "auth": {"keys_file": "keys"}, "tenants": tenants})
    )
    return file


def test_the_player_of_one_game_is_shown_and_forgotten(data: Path, config: Path) -> None:
    acme = ("--data", data, "--config", config, "--tenant", "acme")
    assert "mill" not in run("list", *acme).output and "mill" in run("list", "--data", data).output
    assert (
        "eels"
        not in run("show", "anna", "mira", *acme).output + run("export", "anna", *acme).output
    )
    done = run("forget", "anna", *acme)
    assert "Forgetting anna of acme: all NPCs of the scenes of acme" in done.output
    assert "4 records deleted" in done.output
    assert re.findall(r"(?:inn|mill).*? anna", run("list", "--data", data).output) == [
        "mill.7  mira  anna"
    ]


def test_whose_player_is_forgotten_must_be_said_where_there_are_several_games(
    data: Path, config: Path
) -> None:
    for words, wrong in (
        (["--config", config], "several games: name one with --tenant: acme, bolt, house"),
        (["--config", config, "--tenant", "zeta"], "there is no game zeta"),
        (["--tenant", "acme"], "--tenant wants --config"),
        (["--config", data / "none.yaml", "--tenant", "acme"], "cannot be read"),
    ):
        result = run("forget", "anna", "--data", data, *words)
        assert result.exit_code == 1 and wrong in result.stderr
    assert "eels" in run("export", "anna", "--data", data).output


@pytest.mark.parametrize(("answer", "status", "left"), [("n\n", 1, True), ("y\n", 0, False)])
def test_at_a_terminal_one_may_think_again(
    data: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, left: bool
) -> None:
    monkeypatch.setattr(memory_cli, "_at_a_terminal", lambda: True)
    result = CliRunner().invoke(cli, ["memory", "forget", "anna", "--data", str(data)], answer)
    assert result.exit_code == status
    assert "Forgetting anna: all NPCs of all scenes in" in result.output
    assert (ANNA.player in run("list", "--data", data).output) == left
    assert "deleted" in run("forget", "bob", "--yes", "--data", data).output


def test_ids_are_whole_in_a_narrow_terminal(data: Path) -> None:
    book = Book(data / MEMORY_FILE, memory_settings())
    known(book, "I like fog.", owner=Owner("inn", "mira", "Traveller-0123abcd"))
    book.close()
    narrow = CliRunner(env={"COLUMNS": "60"}).invoke(cli, ["memory", "list", "--data", str(data)])
    assert "Traveller-0123abcd" in narrow.output
    assert "…" not in narrow.output


def test_what_cannot_be_done_says_so_in_one_line(data: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    result = run("list", "--data", empty)
    assert result.exit_code == 1 and "there is no such file" in result.stderr
    assert not empty.exists()
    book = Book(data / MEMORY_FILE, memory_settings())
    result = run("list", "--data", data)
    assert result.exit_code == 1 and "in use by another process" in result.stderr
    book.close()
    result = run("list", "--console", "http://127.0.0.1:9")
    assert result.exit_code == 1 and "give --data FOLDER" in result.stderr


@contextmanager
def answering(status: int, body: object) -> Iterator[tuple[str, list[str]]]:
    """A console that gives one answer, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            key = self.headers.get("authorization", "")
            asked.append(f"{self.command} {self.path} {key}".strip())
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_GET = do_DELETE = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_running_server_is_asked() -> None:
    body = {"players": [], "memories": [], "deleted": 7}
    with answering(200, body) as (console, asked):
        for words in (
            ["list"],
            ["show", "an/na", "mi?ra"],
            ["export", "anna"],
            ["forget", "anna"],
            ["forget", "anna", "--npc", "mira", "--key", "k"],
            ["forget", "anna", "--npc", "mira", "--tenant", "acme"],
            ["list", "--tenant", "house"],
        ):
            result = run(*words, "--console", console)
            assert result.exit_code == 0, result.output
            assert words[0] != "forget" or "7 records deleted" in result.output
    assert asked == [
        "GET /console/memories",
        "GET /console/memories/an%2Fna/mi%3Fra",
        "GET /console/memories/anna",
        "DELETE /console/memories/anna",
        "DELETE /console/memories/anna?npc=mira Bearer k",
        "DELETE /console/memories/anna?npc=mira&tenant=acme",
        "GET /console/memories?tenant=house",
    ]
    with answering(403, {"error": "not here"}) as (console, _):
        result = run("list", "--console", console)
        assert result.exit_code == 1 and "not here" in result.stderr


def test_the_commands_and_settings_of_the_page_are_right(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text("utf-8")
    monkeypatch.chdir(data.parent)
    commands = [
        line.split("#")[0].split()
        for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("troupe memory")
    ]
    assert len(commands) >= 4
    for words in commands:
        assert "--data" in words
        result = run(*words[2:])
        assert result.exit_code == 0, (words, result.output)
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        if "memory:" in block:
            path = data / "troupe.yaml"
            path.write_text(block, "utf-8")
            memory = msgspec.to_builtins(Settings.load(path).memory)
            assert yaml.safe_load(block)["memory"].items() <= memory.items()


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_id_is_broken_however_narrow_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    player = "steam:76561198000000000000000000-and-more"
    folder = tmp_path / "data"
    book = Book(folder / MEMORY_FILE, memory_settings())
    known(book, "I hide [b]the key[/b].", owner=Owner("gilded_griffin", "innkeeper_mira", player))
    book.close()
    file = io.StringIO()
    monkeypatch.setattr(memory_cli, "_out", Console(file=file, width=width, force_terminal=True))
    run("list", "--data", folder)
    run("show", player, "innkeeper_mira", "--data", folder)
    said = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())
    for word in (player, "innkeeper_mira", "gilded_griffin", "I hide [b]the key[/b]."):
        assert word in said, said
    assert re.search(r"last|\d\d\d\d-\d\d-\d\d \d\d:\d\d", said)
