"""People see, export and delete what NPCs remember, of a server or in its folder."""

import asyncio
import contextlib
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
from typer.testing import CliRunner, Result

from gameserver.cli import cli
from gameserver.diary import Person
from gameserver.folders import MEMORY_FILE
from gameserver.settings import Settings
from gameserver.stores.sqlite import FILE, SqliteStore
from gameserver.stores.store import Put, Unit
from npc.memory.book import Book
from npc.memory.records import Owner
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
        ):
            result = run(*words, "--console", console)
            assert result.exit_code == 0, result.output
        assert "7 records deleted" in result.output
    assert asked == [
        "GET /console/memories",
        "GET /console/memories/an%2Fna/mi%3Fra",
        "GET /console/memories/anna",
        "DELETE /console/memories/anna",
        "DELETE /console/memories/anna?npc=mira Bearer k",
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
