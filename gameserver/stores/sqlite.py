"""A store in one SQLite file, for a single node: what is in it survives the process.

A commit is one transaction of all units that came together. It is safe against the end of the
process at any moment; a power cut may take back the last moments, and leaves the file whole
(`synchronous=NORMAL` with a write-ahead log: one fsync a checkpoint instead of one a commit).
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from gameserver.stores.store import (
    Append,
    Changed,
    Drop,
    Elsewhere,
    Erase,
    Holding,
    Keep,
    Put,
    StoreDown,
    StoreError,
    Trim,
    Unit,
    Write,
)

FILE = "worlds.sqlite"
#: Marks the file as ours, and its layout.
_APPLICATION = 0x74727570
_FORMAT = 1
_GRAVE_S = 2.0

_SCHEMA = """
CREATE TABLE bucket (
  name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, seconds REAL, ends REAL
) WITHOUT ROWID;
CREATE INDEX bucket_ends ON bucket (ends) WHERE ends IS NOT NULL;
CREATE TABLE page (
  bucket TEXT, key TEXT, value BLOB NOT NULL, PRIMARY KEY (bucket, key)
) WITHOUT ROWID;
CREATE TABLE log (
  bucket TEXT, s INTEGER, value BLOB NOT NULL, PRIMARY KEY (bucket, s)
) WITHOUT ROWID;
CREATE TABLE seen (at REAL NOT NULL);
INSERT INTO seen VALUES (0);
"""

Result = TypeVar("Result")


class SqliteStore:
    """See `gameserver.stores.store.Store`. One thread of its own does all the work.

    What is kept for a time is kept for time in which somebody runs the store: a session does not
    end because the server was down.
    """

    survives = True
    shared = False

    def __init__(self, folder: Path) -> None:
        """The file is made in `folder`, which is made if need be."""
        self.file = folder / FILE
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._db: sqlite3.Connection | None = None

    async def open(self) -> None:
        """See `Store`. Raises `StoreError` for a file that is damaged, in use, too new, not ours,
        or in a place where we may not write."""
        await self._do(self._open)

    async def close(self) -> None:
        """See `Store`."""
        await self._do(self._close)

    async def claim(
        self, bucket: str, *, lease: bool, expected: tuple[str, bytes] | None = None
    ) -> Holding | Elsewhere:
        """See `Store`. There is nobody else to hold a lease."""
        if expected is not None and await self.peek(bucket, expected[0]) != expected[1]:
            raise Changed
        return await self._do(lambda: self._claim(bucket))

    async def peek(self, bucket: str, key: str) -> bytes | None:
        """See `Store`."""
        return await self._do(lambda: self._peek(bucket, key))

    async def keys(self, bucket: str) -> Sequence[str]:
        """See `Store`."""
        return await self._do(lambda: self._keys(bucket))

    async def commit(self, units: Sequence[Unit]) -> frozenset[str]:
        """See `Store`."""
        return await self._do(lambda: self._commit(units))

    async def buckets(self, prefix: str) -> Sequence[str]:
        """See `Store`."""
        return await self._do(lambda: self._buckets(prefix))

    async def scrub(self) -> None:
        """See `Store`."""
        await self._do(self._scrub)

    async def _do(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # In the thread

    def _open(self) -> None:
        if self._db is not None:
            return
        file = self.file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # For this user alone: it holds what players whisper.
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
            db = sqlite3.connect(file, isolation_level=None, timeout=0.5)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"{file} cannot be opened ({error}): choose another folder with --data"
            ) from error
        try:
            with _explained(file):
                self._prepare(db)
        except BaseException:
            db.close()
            raise
        self._db = db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("BEGIN IMMEDIATE")  # takes the lock, or fails
        db.execute("COMMIT")
        if not _check(db, self.file):
            db.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id={_APPLICATION}; "
                f"PRAGMA user_version={_FORMAT}; COMMIT;"
            )
        now = time.time()
        db.execute(
            "UPDATE bucket SET ends = ? + seconds WHERE ends > (SELECT at FROM seen)", (now,)
        )
        db.execute("UPDATE seen SET at = ?", (now,))

    def _close(self) -> None:
        if self._db is not None:
            db, self._db = self._db, None
            with self._transaction(db):
                db.execute("UPDATE seen SET at = ?", (time.time(),))
            db.close()

    def _claim(self, bucket: str) -> Holding:
        with self._transaction() as db:
            row = db.execute("SELECT epoch FROM bucket WHERE name = ?", (bucket,)).fetchone()
            epoch = max((row[0] if row else 0) + 1, time.time_ns() // 1_000_000)
            db.execute(
                "INSERT INTO bucket (name, epoch) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch",
                (bucket, epoch),
            )
            values = db.execute("SELECT key, value FROM page WHERE bucket = ?", (bucket,))
            log = db.execute("SELECT s, value FROM log WHERE bucket = ? ORDER BY s", (bucket,))
            return Holding(epoch, dict(values.fetchall()), log.fetchall())

    def _peek(self, bucket: str, key: str) -> bytes | None:
        with self._transaction() as db:
            row = db.execute(
                "SELECT value FROM page WHERE bucket = ? AND key = ?", (bucket, key)
            ).fetchone()
            return None if row is None else row[0]

    def _keys(self, bucket: str) -> list[str]:
        with self._transaction() as db:
            found = db.execute("SELECT key FROM page WHERE bucket = ?", (bucket,))
            return [key for (key,) in found]

    def _commit(self, units: Sequence[Unit]) -> frozenset[str]:
        lost: set[str] = set()
        with self._transaction() as db:
            for unit in units:
                owners = unit.epochs.items()
                gone = {name for name, ep in owners if name in lost or _is_stale(db, name, ep)}
                if not gone <= unit.loose:
                    lost.update(unit.epochs)
                    continue
                lost |= gone
                for name, epoch in owners:
                    if name not in gone:
                        db.execute(
                            "INSERT INTO bucket (name, epoch) VALUES (?, ?) "
                            "ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch "
                            "WHERE epoch < excluded.epoch",
                            (name, epoch),
                        )
                for name, write in unit.writes:
                    if name not in gone:
                        _apply(db, name, write)
        return frozenset(lost)

    def _buckets(self, prefix: str) -> list[str]:
        with self._transaction() as db:
            found = db.execute(
                "SELECT DISTINCT bucket FROM page WHERE substr(bucket, 1, ?) = ?",
                (len(prefix), prefix),
            )
            return [name for (name,) in found]

    def _scrub(self) -> None:
        if self._db is None:
            raise StoreDown("the store is closed")
        empty_log = "PRAGMA wal_checkpoint(TRUNCATE)"
        try:
            for statement in (empty_log, "VACUUM", empty_log):
                self._db.execute(statement).fetchall()
        except sqlite3.Error as error:
            raise StoreDown(f"{self.file}: {error}") from error

    @contextmanager
    def _transaction(self, db: sqlite3.Connection | None = None) -> Iterator[sqlite3.Connection]:
        db = db or self._db
        if db is None:
            raise StoreDown("the store is closed")
        try:
            db.execute("BEGIN IMMEDIATE")
            _expire(db)
            yield db
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise StoreDown(f"{self.file}: {error}") from error


def inspect_file(file: Path) -> None:
    """Say what is wrong with a file, and change nothing. One that a server uses just now is right.

    Raises:
        StoreError: it cannot be used.
    """
    with _explained(file):
        db = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=0.1)
        try:
            _check(db, file)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
        finally:
            db.close()


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Tell what the errors of SQLite mean."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            problem = "is in use by another server: stop that one, or choose another folder with"
            raise StoreError(f"{file} {problem} --data") from error
        if isinstance(error, sqlite3.OperationalError):
            problem = f"cannot be used ({error}): see to its folder, or choose another with --data"
            raise StoreError(f"{file} {problem}") from error
        raise _damaged(file, str(error)) from error


def _check(db: sqlite3.Connection, file: Path) -> bool:
    """Whether there is anything in a file, all of which we can read; raises `StoreError`."""
    (problem,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if problem != "ok":
        raise _damaged(file, problem)
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0:
        return False
    if application != _APPLICATION:
        raise StoreError(f"{file} is a file of another program: choose another --data folder")
    if version > _FORMAT:
        raise StoreError(
            f"{file} was written by a newer Troupe (format {version}, this one knows {_FORMAT}): "
            "start that version, or choose another folder with --data"
        )
    return True


def _is_stale(db: sqlite3.Connection, bucket: str, epoch: int) -> bool:
    found = db.execute("SELECT 1 FROM bucket WHERE name = ? AND epoch > ?", (bucket, epoch))
    return found.fetchone() is not None


def _apply(db: sqlite3.Connection, bucket: str, write: Write) -> None:
    match write:
        case Put(key, value):
            db.execute("INSERT OR REPLACE INTO page VALUES (?, ?, ?)", (bucket, key, value))
        case Drop(key):
            db.execute("DELETE FROM page WHERE bucket = ? AND key = ?", (bucket, key))
        case Append(s, value):
            db.execute(
                "INSERT INTO log SELECT ?1, ?2, ?3 WHERE ?2 > "
                "(SELECT coalesce(max(s), 0) FROM log WHERE bucket = ?1)",
                (bucket, s, value),
            )
        case Trim(upto):
            db.execute("DELETE FROM log WHERE bucket = ? AND s <= ?", (bucket, upto))
        case Keep(seconds):
            now = time.time()
            db.execute(
                "UPDATE bucket SET seconds = ?, ends = ? WHERE name = ?",
                (seconds, now + seconds, bucket),
            )
            db.execute("UPDATE seen SET at = ?", (now,))
        case Erase():  # its epoch is remembered, until the clock has left it behind for sure
            _empty(db, bucket)
            ends = time.time() + _GRAVE_S
            db.execute("UPDATE bucket SET seconds = 0, ends = ? WHERE name = ?", (ends, bucket))


def _empty(db: sqlite3.Connection, bucket: str) -> None:
    db.execute("DELETE FROM page WHERE bucket = ?", (bucket,))
    db.execute("DELETE FROM log WHERE bucket = ?", (bucket,))


def _expire(db: sqlite3.Connection) -> None:
    ended = db.execute("SELECT name FROM bucket WHERE ends < ?", (time.time(),)).fetchall()
    for (name,) in ended:
        _empty(db, name)
        db.execute("DELETE FROM bucket WHERE name = ?", (name,))


def _damaged(file: Path, problem: str) -> StoreError:
    return StoreError(
        f"{file} is damaged ({problem}): put it aside to begin anew, or put a copy of it in its "
        "place"
    )
