"""Opening the file of memories: what is refused, and how it is kept."""

import os
import sqlite3
from pathlib import Path

#: Marks a file as ours, and its layout.
_APPLICATION = 0x54524D45
_VERSION = 1
#: Another process that ends its work may hold the file for so long.
_BUSY_S = 1.0

_LAYOUT = """
CREATE TABLE lines (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL, stream TEXT NOT NULL, npc TEXT NOT NULL, player TEXT NOT NULL,
    circle TEXT NOT NULL, present TEXT NOT NULL, own INTEGER NOT NULL, name TEXT NOT NULL,
    text TEXT NOT NULL, ts INTEGER NOT NULL, distilled INTEGER NOT NULL DEFAULT 0,
    UNIQUE (stream, npc, id)
);
CREATE INDEX lines_of_talk ON lines (stream, npc, player, circle, number);
CREATE INDEX lines_to_distil ON lines (stream, npc, player, circle) WHERE distilled=0;
CREATE TABLE memories (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stream TEXT NOT NULL, npc TEXT NOT NULL, player TEXT NOT NULL, circle TEXT NOT NULL,
    kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL, importance REAL NOT NULL,
    ts INTEGER NOT NULL, present TEXT NOT NULL, fades INTEGER,
    vector BLOB, vectors TEXT NOT NULL
);
CREATE INDEX memories_of_talk ON memories (stream, npc, circle, player, kind);
CREATE INDEX memories_fading ON memories (fades) WHERE fades IS NOT NULL;
"""


class MemoryFileError(OSError):
    """A file of memories cannot be used; the message names it and says what to do."""


def open_database(path: Path | None) -> tuple[sqlite3.Connection, str]:
    """A connection that any one thread may use, and by what it compares vectors: "sqlite-vec", or
    "numpy" and why.

    Raises:
        MemoryFileError: it cannot be used.
    """
    name = "the book of memories" if path is None else str(path)
    if path is not None:
        _make_private(path)
    try:
        database = sqlite3.connect(
            ":memory:" if path is None else path,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise MemoryFileError(f"{name} cannot be opened: {error}") from error
    try:
        _prepare(database, name)
        return database, _search(database)
    except sqlite3.DatabaseError as error:
        database.close()
        if "locked" in str(error):
            problem = "is in use by another process, perhaps a running server: ask that one"
        else:
            problem = (
                f"is damaged or no memory file ({error}): put it aside, or a copy in its place"
            )
        raise MemoryFileError(f"{name} {problem}") from error
    except BaseException:
        database.close()
        raise


def _prepare(database: sqlite3.Connection, name: str) -> None:
    # Deleted text is overwritten. Nobody else reads the file: a log beside it never outlives us.
    for setting in ("locking_mode=EXCLUSIVE", "secure_delete=ON", "journal_mode=WAL"):
        database.execute(f"PRAGMA {setting}").fetchall()
    # A power cut may take the last moments; the end of the process takes nothing.
    database.execute("PRAGMA synchronous=NORMAL")
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if tables and application != _APPLICATION:
        raise MemoryFileError(f"{name} is a database of another program: name another folder")
    if version > _VERSION:
        raise MemoryFileError(
            f"{name} was written by a newer version (layout {version}, this one knows "
            f"{_VERSION}): use that version, or another folder"
        )
    if tables:
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
    else:
        database.executescript(
            f"BEGIN; PRAGMA application_id={_APPLICATION}; PRAGMA user_version={_VERSION};"
            f"{_LAYOUT} COMMIT;"
        )
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _make_private(path: Path) -> None:
    """Make the file for this user alone: it holds what players whisper."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise MemoryFileError(f"{path} cannot be opened: {error.strerror}") from error


def _search(database: sqlite3.Connection) -> str:
    if not hasattr(database, "enable_load_extension"):
        return "numpy: the sqlite3 of this Python loads no extensions"
    try:
        import sqlite_vec
    except ImportError:
        return "numpy: sqlite-vec is not installed"
    try:
        database.enable_load_extension(True)
        sqlite_vec.load(database)
        database.enable_load_extension(False)
    except (sqlite3.Error, AttributeError) as error:
        return f"numpy: sqlite-vec does not load ({error})"
    return "sqlite-vec"
