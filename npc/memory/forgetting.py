"""Forgetting a player, to the last byte, and telling them what is remembered."""

import re
from collections.abc import Iterable, Mapping

from npc.memory.book import Book
from npc.memory.records import Scenes, everywhere, joined

_WORD = re.compile(r"\w+")
#: So many words in a row that others' records share with a player's are that player's words.
_QUOTED_WORDS = 6


def forget(book: Book, player: str, npc: str | None = None, scenes: Scenes = everywhere) -> int:
    """Delete what is kept of a player, also where an NPC has quoted them to others; the bytes are
    overwritten, in the log beside the file, too.

    Args:
        npc: only what this NPC remembers; None for all.
        scenes: which are meant: players of one name may be several.

    Returns:
        Records deleted.
    """
    book.database.create_function("meant", 1, scenes)
    here, values = "meant(stream)", [player]
    if npc is not None:
        here, values = "meant(stream) AND npc=?", [player, npc]
    where = f"player=? AND {here}"
    with book.change() as database:
        texts = [
            text
            for table in ("lines WHERE own=0 AND", "memories WHERE")
            for (text,) in database.execute(f"SELECT text FROM {table} {where}", values)
        ]
        deleted = sum(
            database.execute(f"DELETE FROM {table} WHERE {where}", values).rowcount
            for table in ("lines", "memories")
        )
        runs = set(_runs(texts))
        others = f"player<>? AND {here}"
        for table, spoken in (("lines", "own=1 AND "), ("memories", "")):
            key = "number" if table == "lines" else "id"
            rows = database.execute(
                f"SELECT {key}, text FROM {table} WHERE {spoken}{others}", values
            ).fetchall()
            quoting = [(row,) for row, text in rows if not runs.isdisjoint(_runs([text]))]
            database.executemany(f"DELETE FROM {table} WHERE {key}=?", quoting)
            deleted += len(quoting)
        # Who was there is a fact about them, too.
        if npc is None:
            for table in ("lines", "memories"):
                for column in ("present", "circle"):
                    database.execute(
                        f"UPDATE {table} SET {column}=replace({column}, :player, ',') "
                        f"WHERE instr({column}, :player) AND {here}",
                        {"player": joined([player])},
                    )
    scrub(book)
    return deleted


def scrub(book: Book) -> None:
    """Let nothing that was deleted stay in the file or its log."""
    empty_log = "PRAGMA wal_checkpoint(TRUNCATE)"
    for statement in (empty_log, "VACUUM", empty_log):
        book.database.execute(statement).fetchall()


def export(book: Book, player: str, scenes: Scenes = everywhere) -> Mapping[str, object]:
    """All that is kept of a player in some scenes, as plain JSON values."""
    return {
        "version": 1,
        "player": player,
        "lines": [
            {
                "id": line.id,
                "scene": line.owner.stream,
                "npc": line.owner.npc,
                "by": "npc" if line.own else "player",
                "name": line.name,
                "text": line.text,
                "ts": line.ts,
                "heard_by": None if line.circle is None else sorted(line.circle),
                "present": sorted(line.present),
            }
            for line in book.lines("player=?", (player,))
            if scenes(line.owner.stream)
        ],
        "memories": [
            {
                "id": memory.id,
                "scene": memory.owner.stream,
                "npc": memory.owner.npc,
                "kind": memory.kind,
                "name": memory.name,
                "text": memory.text,
                "importance": round(memory.importance, 3),
                "ts": memory.ts,
                "heard_by": None if memory.circle is None else sorted(memory.circle),
                "present": sorted(memory.present),
            }
            for memory in book.memories("player=?", (player,))
            if scenes(memory.owner.stream)
        ],
    }


def _runs(texts: Iterable[str]) -> Iterable[tuple[str, ...]]:
    for text in texts:
        words = [word.casefold() for word in _WORD.findall(text)]
        for at in range(len(words) - _QUOTED_WORDS + 1):
            yield tuple(words[at : at + _QUOTED_WORDS])
