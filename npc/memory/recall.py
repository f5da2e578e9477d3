"""Looking through a book: what comes to mind, what may be told to whom, and how to forget."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npc.memory.book import Book
from npc.memory.records import (
    Memory,
    Recollection,
    circle_of,
    joined,
    may_use,
)
from npc.memory.scoring import scores
from npc.memory.vectors import Vectors
from npc.settings import MemorySettings
from npc.transcript import Audience


class Recall:
    """Reads one book; blocks as that does."""

    def __init__(self, book: Book, settings: MemorySettings, vectors: str) -> None:
        """`vectors` names what makes the vectors of questions."""
        self._book = book
        self._settings = settings
        self._vectors = vectors

    def about(
        self,
        stream: str,
        npc: str,
        asker: str,
        audience: Audience,
        query: Vectors | None,
        now: int,
    ) -> Recollection:
        """What comes to an NPC's mind when `asker` speaks and `audience` will hear the answer: of
        their own talk, and what others said while the asker was there.

        Args:
            query: vector of the line, float32 [dim]; None if there is none (yet).
            now: ms.
        """
        circles = self._circles(stream, npc, audience)
        if not circles:
            return Recollection()
        where = (
            f"stream=? AND npc=? AND circle IN ({', '.join('?' * len(circles))}) "
            "AND (player=? OR (kind='fact' AND instr(present, ?)))"
        )
        values = (stream, npc, *circles, asker, joined([asker]))
        best, count = self._best(where, values, asker, query, now)
        lines = self._book.lines_of(stream, npc, asker, circles, self._settings.lines)
        return Recollection(tuple(best), lines, count > self._settings.facts)

    def _circles(self, stream: str, npc: str, audience: Audience) -> list[str]:
        """Those whose memories the audience may be told."""
        found = self._book.database.execute(
            "SELECT circle FROM memories WHERE stream=? AND npc=? UNION "
            "SELECT circle FROM lines WHERE stream=? AND npc=?",
            (stream, npc, stream, npc),
        )
        return [text for (text,) in found if may_use(circle_of(text), audience)]

    def _best(
        self, where: str, values: Sequence[object], asker: str, query: Vectors | None, now: int
    ) -> tuple[list[Memory], int]:
        """The summaries, then the facts that come to mind, best first; and how many facts there
        are to choose from.
        """
        rows = self._book.database.execute(
            f"SELECT id, kind, importance, ts, player FROM memories WHERE {where}", values
        ).fetchall()
        facts = [row for row in rows if row[1] == "fact"]
        near = relevances(self._book, where, values, query, self._vectors)
        relevant = [near.get(row[0], 0.0) for row in facts]
        points = scores(
            [row[2] for row in facts],
            [now - row[3] for row in facts],
            relevant,
            [row[4] == asker for row in facts],
            self._settings,
        )
        order = np.argsort(-points, kind="stable")[: self._settings.facts]
        chosen = {facts[at][0]: (float(points[at]), relevant[at]) for at in order.tolist()}
        chosen |= {row[0]: (0.0, 0.0) for row in rows if row[1] == "summary"}
        marks = ", ".join("?" * len(chosen))
        found = self._book.memories(f"id IN ({marks})", tuple(chosen))
        ranked = [
            replace(memory, score=score, relevance=relevance)
            for memory in found
            for score, relevance in [chosen[memory.id]]
        ]
        ranked.sort(key=lambda memory: (memory.kind == "summary", memory.score), reverse=True)
        return ranked, len(facts)


def relevances(
    book: Book, where: str, values: Sequence[object], query: Vectors | None, by: str
) -> dict[int, float]:
    """How near the memories that a condition of ours picks are to a vector, from 0 to 1 by id; none
    without a query. What another embedder than `by` made is left out.
    """
    if query is None:
        return {}
    picked = f"FROM memories WHERE {where} AND vectors=?"
    if book.sqlite_vec:
        rows = book.database.execute(
            f"SELECT id, 1 - vec_distance_cosine(vector, ?) {picked}",
            (query.tobytes(), *values, by),
        )
        # A vector of zeros is at no distance from anything.
        return {id: min(max(near or 0.0, 0.0), 1.0) for id, near in rows}
    found = book.database.execute(f"SELECT id, vector {picked}", (*values, by)).fetchall()
    if not found:
        return {}
    matrix = np.frombuffer(b"".join(vector for _, vector in found), np.float32)
    near = np.clip(matrix.reshape(len(found), -1) @ query, 0.0, 1.0).tolist()
    return {id: value for (id, _), value in zip(found, near, strict=True)}
