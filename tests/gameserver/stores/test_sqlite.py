"""The data folder: what is wrong with it is said clearly, and nothing in it is harmed."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gameserver.doctor import examine
from gameserver.stores.sqlite import FILE, SqliteStore
from gameserver.stores.store import Holding, Keep, Put, StoreDown, StoreError, Unit
from tests.gameserver.stage import settings_with
from tests.gameserver.test_doctor import WELL

CRASH = """
import asyncio, os, sys
from pathlib import Path
from gameserver.stores.sqlite import SqliteStore
from gameserver.stores.store import Put, Unit
async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    held = await store.claim("inn", lease=True)
    await store.commit([Unit(1, {"inn": held.epoch}, [("inn", Put("k", b"kept"))])])
    os._exit(9)
asyncio.run(main())
"""


async def filled(folder: Path) -> Path:
    store = SqliteStore(folder)
    await store.open()
    held = await store.claim("inn", lease=True)
    assert isinstance(held, Holding)
    for number in range(1, 200):
        unit = Unit(number, {"inn": held.epoch}, [("inn", Put(f"k{number}", b"v" * 100))])
        await store.commit([unit])
    await store.close()
    return folder / FILE


def change(file: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def cut(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096 : len(data) // 2] = b"\x5a" * (len(data) // 2 - 4096)
    file.write_bytes(data)


def scribble(file: Path) -> None:
    file.write_bytes(b"this is a shopping list " * 1000)


def renew(file: Path) -> None:
    change(file, "PRAGMA user_version=2")


def repaint(file: Path) -> None:
    change(file, "PRAGMA application_id=1")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (cut, "is damaged"),
        (scribble, "is damaged"),
        (renew, "newer Troupe"),
        (repaint, "another program"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_and_left_as_it_is(
    tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    file = await filled(tmp_path)
    harm(file)
    before = file.read_bytes()
    with pytest.raises(StoreError, match=words) as caught:
        await SqliteStore(tmp_path).open()
    assert str(file) in str(caught.value)
    assert file.read_bytes() == before


async def test_a_file_in_use_is_refused_and_free_once_its_server_has_ended(tmp_path: Path) -> None:
    first, second = SqliteStore(tmp_path), SqliteStore(tmp_path)
    await first.open()
    with pytest.raises(StoreError, match="in use by another server"):
        await second.open()
    await first.close()
    await second.open()
    await second.close()


async def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StoreError, match="choose another folder"):
        await SqliteStore(tmp_path / "data").open()


async def test_a_commit_outlives_a_process_that_ends_without_a_word(tmp_path: Path) -> None:
    crash = [sys.executable, "-c", CRASH, str(tmp_path)]
    done = await asyncio.to_thread(subprocess.run, crash, check=False)
    assert done.returncode == 9
    store = SqliteStore(tmp_path)
    await store.open()
    assert await store.peek("inn", "k") == b"kept"
    await store.close()


async def test_time_in_which_nobody_runs_the_store_does_not_count(tmp_path: Path) -> None:
    """A session is not over because the server was down for long."""
    store = SqliteStore(tmp_path)
    await store.open()
    await store.commit([Unit(1, {"s": 1}, [("s", Keep(60.0)), ("s", Put("k", b"v"))])])
    await store.close()
    long_ago = "UPDATE bucket SET ends = ends - 100000", "UPDATE seen SET at = at - 100000"
    change(tmp_path / FILE, *long_ago)
    await store.open()
    assert await store.peek("s", "k") == b"v"
    await store.close()


async def test_a_closed_store_is_down(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    await store.close()
    await store.close()
    with pytest.raises(StoreDown):
        await store.peek("inn", "k")


async def test_doctor_tells_of_the_file_and_changes_nothing(tmp_path: Path) -> None:
    def finding() -> tuple[str, str]:
        found = examine(settings_with(console_port=0, data=str(tmp_path)), tmp_path, WELL)
        return next((f.state, f.found) for f in found if f.name == "worlds")

    async def look() -> tuple[str, str]:
        return await asyncio.to_thread(finding)

    assert (await look())[0] == "ok"
    assert not os.listdir(tmp_path), "nothing was made"
    file = await filled(tmp_path)
    assert await look() == ("ok", str(file))
    store = SqliteStore(tmp_path)
    await store.open()
    assert await look() == ("ok", str(file)), "a server that runs is no fault"
    await store.close()
    scribble(file)
    assert (await look())[0] == "broken"


def test_serve_says_that_a_folder_is_in_use(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        wish = ["serve", "--port", "0", "--console-port", "0", "--data", str(tmp_path)]
        command = [sys.executable, "-m", "gameserver.cli", *wish, "--model", "script:none"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "in use by another server" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


async def test_its_files_are_for_the_user_of_the_server_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    await store.commit([Unit(1, {"s": 1}, [("s", Put("k", b"whispered"))])])
    modes = {entry.name: entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path)}
    assert FILE in modes
    assert set(modes.values()) == {0o600}, modes
    await store.close()
