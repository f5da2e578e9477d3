"""The book of memories: one SQLite file, or a database in memory.

All methods block; one thread uses a book at a time. Every change is one transaction in a
write-ahead log: the end of the process at any moment leaves a whole file. The file is held
exclusively, so that no two processes remember different things.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npc.memory.opening import open_database
from npc.memory.records import (
    Draft,
    Memory,
    Owner,
    Spoken,
    Talk,
    circle_of,
    circle_text,
    joined,
    players_of,
)
from npc.memory.scoring import fades_at, scores
from npc.memory.vectors import Vectors
from npc.settings import MemorySettings

#: Lines that are made into facts at a time.
_TALK_LINES = 64
_OF_TALK = "stream=? AND npc=? AND player=? AND circle=?"


@dataclass(frozen=True, slots=True)
class Amendment:
    """Other words of a line were heard than thought."""

    stream: str
    npc: str
    id: str
    text: str


class Book:
    """What is kept of all NPCs.

    Attributes:
        searches_by: "sqlite-vec", or "numpy" and why.
        sqlite_vec: whether vectors are compared in SQLite.
    """

    def __init__(self, path: Path | None, settings: MemorySettings) -> None:
        """Open a file, made if there is none; None for a book that ends with the process.

        Raises:
            MemoryFileError: it cannot be used; says why and what to do.
        """
        self._settings = settings
        self.database, self.searches_by = open_database(path)
        self.sqlite_vec = self.searches_by == "sqlite-vec"

    def close(self) -> None:
        """Write everything into the file itself. Idempotent."""
        self.database.close()

    def write(self, changes: Iterable[Spoken | Amendment]) -> None:
        """Take in what was said, in order. A line that is known already is taken once."""
        with self.change() as database:
            for change in changes:
                if isinstance(change, Amendment):
                    self._amend(database, change)
                else:
                    self._add(database, change)

    def due(self, now: int) -> Talk | None:
        """The talk that has waited longest for facts to be made of it; None if none is due."""
        quiet_since = now - int(self._settings.distil_quiet_s * 1000)
        found = self.database.execute(
            "SELECT stream, npc, player, circle FROM lines WHERE distilled=0 AND text<>'' "
            "GROUP BY 1, 2, 3, 4 HAVING COUNT(*)>=? OR MAX(ts)<=? ORDER BY MIN(ts) LIMIT 1",
            (self._settings.distil_lines, quiet_since),
        ).fetchone()
        if found is None:
            return None
        lines = self.database.execute(
            f"SELECT {_LINE} FROM lines WHERE {_OF_TALK} AND distilled=0 AND text<>'' "
            "ORDER BY number LIMIT ?",
            (*found, _TALK_LINES),
        )
        summary = self.database.execute(
            f"SELECT text FROM memories WHERE {_OF_TALK} AND kind='summary'", found
        ).fetchone()
        owner, circle = Owner(*found[:3]), circle_of(found[3])
        return Talk(owner, circle, tuple(map(_spoken, lines)), summary[0] if summary else "")

    def keep(
        self, talk: Talk, facts: Sequence[tuple[Draft, bytes]], summary: Draft | None, by: str
    ) -> bool:
        """Remember what was made of a talk, and that it was.

        Args:
            facts: each with its vector, float32.
            summary: of all that was said so far.
            by: name of what made the vectors.

        Returns:
            Whether it was kept: not if a line has been amended or forgotten meanwhile.
        """
        key = (*_names(talk.owner), circle_text(talk.circle))
        name = next((line.name for line in talk.lines if not line.own), talk.owner.player)
        with self.change() as database:
            for line in talk.lines:
                known = database.execute(
                    f"SELECT 1 FROM lines WHERE {_OF_TALK} AND id=? AND text=?",
                    (*key, line.id, line.text),
                )
                if known.fetchone() is None:
                    return False
            database.executemany(
                f"UPDATE lines SET distilled=1 WHERE {_OF_TALK} AND id=?",
                [(*key, line.id) for line in talk.lines],
            )
            for draft, vector in facts:
                self._remember(database, key, "fact", name, draft, vector, by)
            if summary is not None:
                database.execute(f"DELETE FROM memories WHERE {_OF_TALK} AND kind='summary'", key)
                self._remember(database, key, "summary", name, summary, None, by)
            self._make_room(database, talk, max(line.ts for line in talk.lines))
        return True

    def fade(self, now: int) -> int:
        """Forget what has lost its strength by now, ms; returns how many facts."""
        with self.change() as database:
            return database.execute("DELETE FROM memories WHERE fades<?", (now,)).rowcount

    def without_vectors(self, by: str, most: int) -> list[tuple[int, str]]:
        """Facts, by id, that have no vector made by `by`."""
        return self.database.execute(
            "SELECT id, text FROM memories WHERE kind='fact' AND vectors<>? LIMIT ?", (by, most)
        ).fetchall()

    def set_vectors(self, ids: Sequence[int], vectors: Vectors, by: str) -> None:
        """Give facts their vectors, float32 [len(ids), dim]."""
        with self.change() as database:
            database.executemany(
                "UPDATE memories SET vector=?, vectors=? WHERE id=?",
                [(row.tobytes(), by, id) for id, row in zip(ids, vectors, strict=True)],
            )

    def lines_of(
        self, stream: str, npc: str, player: str, circles: Sequence[str], most: int
    ) -> tuple[Spoken, ...]:
        """The latest lines of a player's talk in these circles, oldest first."""
        lines = self.database.execute(
            f"SELECT {_LINE} FROM lines WHERE stream=? AND npc=? AND player=? AND text<>'' "
            f"AND circle IN ({_marks(circles)}) ORDER BY number DESC LIMIT ?",
            (stream, npc, player, *circles, most),
        )
        return tuple(map(_spoken, lines))[::-1]

    def memories(self, where: str, values: Sequence[object]) -> list[Memory]:
        """The memories that a condition of ours picks, oldest first."""
        rows = self.database.execute(
            "SELECT id, stream, npc, player, circle, kind, name, text, importance, ts, present "
            f"FROM memories WHERE {where} ORDER BY ts, id",
            values,
        )
        return [
            Memory(
                id,
                Owner(stream, npc, player),
                circle_of(circle),
                kind,
                name,
                text,
                importance,
                ts,
                players_of(present),
            )
            for id, stream, npc, player, circle, kind, name, text, importance, ts, present in rows
        ]

    def lines(self, where: str, values: Sequence[object]) -> list[Spoken]:
        """The lines that a condition of ours picks, oldest first."""
        return list(
            map(
                _spoken,
                self.database.execute(
                    f"SELECT {_LINE} FROM lines WHERE {where} ORDER BY number", values
                ),
            )
        )

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it happens, or nothing."""
        with self.database:
            self.database.execute("BEGIN IMMEDIATE")
            yield self.database

    def _add(self, database: sqlite3.Connection, line: Spoken) -> None:
        owner = line.owner
        values = (
            line.id,
            *_names(owner),
            circle_text(line.circle),
            joined(line.present),
            line.own,
            _storable(line.name),
            _storable(line.text),
            line.ts,
        )
        added = database.execute(
            "INSERT OR IGNORE INTO lines (id, stream, npc, player, circle, present, own, name, "
            "text, ts) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )
        if added.rowcount:
            key = (*_names(owner), circle_text(line.circle))
            database.execute(
                f"DELETE FROM lines WHERE {_OF_TALK} AND number<=(SELECT number FROM lines "
                f"WHERE {_OF_TALK} ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (*key, *key, self._settings.lines_per_player),
            )

    def _amend(self, database: sqlite3.Connection, change: Amendment) -> None:
        at = (change.stream, change.npc, change.id)
        text = _storable(change.text)
        found = database.execute(
            "SELECT stream, npc, player, circle, distilled FROM lines "
            "WHERE stream=? AND npc=? AND id=? AND text<>?",
            (*at, text),
        ).fetchone()
        if found is None:
            return
        database.execute("UPDATE lines SET text=? WHERE stream=? AND npc=? AND id=?", (text, *at))
        if found[4]:
            # A summary may tell what was not heard after all; another is made of the lines.
            database.execute(f"DELETE FROM memories WHERE {_OF_TALK} AND kind='summary'", found[:4])
            database.execute(f"UPDATE lines SET distilled=0 WHERE {_OF_TALK}", found[:4])

    def _remember(
        self,
        database: sqlite3.Connection,
        key: tuple[str, ...],
        kind: str,
        name: str,
        draft: Draft,
        vector: bytes | None,
        by: str,
    ) -> None:
        """Add a memory, or renew the same one: then everybody has heard it who heard it once."""
        settings, text = self._settings, _storable(draft.text)
        present, importance = draft.present, draft.importance
        before = database.execute(
            f"SELECT id, present, importance FROM memories WHERE {_OF_TALK} AND kind=? AND text=?",
            (*key, kind, text),
        ).fetchone()
        if before is not None:
            present |= players_of(before[1])
            importance = max(importance, before[2])
            database.execute("DELETE FROM memories WHERE id=?", (before[0],))
        database.execute(
            "INSERT INTO memories (stream, npc, player, circle, kind, name, text, importance, ts, "
            "present, fades, vector, vectors) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *key,
                kind,
                _storable(name),
                text,
                importance,
                draft.ts,
                joined(present),
                fades_at(importance, draft.ts, settings),
                vector,
                by if vector is not None else "",
            ),
        )

    def _make_room(self, database: sqlite3.Connection, talk: Talk, now: int) -> None:
        """Forget the weakest facts of a player, or of an NPC, that has too many."""
        settings = self._settings
        key = (*_names(talk.owner), circle_text(talk.circle))
        for where, values, most in (
            (_OF_TALK, key, settings.facts_per_player),
            ("stream=? AND npc=?", key[:2], settings.facts_per_npc),
        ):
            picked = f"FROM memories WHERE {where} AND kind='fact'"
            (count,) = database.execute(f"SELECT COUNT(*) {picked}", values).fetchone()
            if count <= most:
                continue
            rows = database.execute(f"SELECT id, importance, ts {picked}", values).fetchall()
            ids, importance, ts = zip(*rows, strict=True)
            ages, zeros, own = [now - t for t in ts], [0.0] * count, [True] * count
            worth = scores(importance, ages, zeros, own, settings)
            # A tenth more than needed, so that this is not done for every new fact.
            weakest = worth.argsort()[: count - most + most // 10]
            database.executemany(
                "DELETE FROM memories WHERE id=?", [(ids[int(at)],) for at in weakest]
            )


#: Columns that `_spoken` reads.
_LINE = "id, stream, npc, player, circle, own, name, text, ts, present"


def _spoken(row: Any) -> Spoken:
    id, stream, npc, player, circle, own, name, text, ts, present = row
    owner = Owner(stream, npc, player)
    return Spoken(id, owner, circle_of(circle), bool(own), name, text, ts, players_of(present))


def _names(owner: Owner) -> tuple[str, str, str]:
    return owner.stream, owner.npc, owner.player


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _storable(text: str) -> str:
    """Text that is valid Unicode, which SQLite insists on."""
    return text.encode("utf-8", "replace").decode("utf-8")
