"""Memory for people to look at."""

from dataclasses import dataclass

from npc.memory.book import Book
from npc.memory.recall import relevances
from npc.memory.records import Kind, Memory, Scenes, everywhere
from npc.memory.scoring import scores, strength
from npc.memory.vectors import Vectors
from npc.settings import MemorySettings


@dataclass(frozen=True, slots=True)
class Known:
    """A player whom an NPC remembers.

    Attributes:
        scene: id of the running scene.
        npc, player: ids.
        name: of the player, as last shown.
        lines, facts: how many are kept.
        last: when the last line was said, ms.
    """

    scene: str
    npc: str
    player: str
    name: str
    lines: int
    facts: int
    last: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A memory as people see it.

    Attributes:
        id, scene, npc, player, kind, text, ts: see `Memory`.
        heard_by: ids of the players of a whisper; None: the whole scene.
        present: ids of those who could hear it.
        importance, strength, relevance, score: see `npc.memory.scoring`; from 0, all but the last
            to 1.
    """

    id: int
    scene: str
    npc: str
    player: str
    kind: Kind
    text: str
    ts: int
    heard_by: list[str] | None
    present: list[str]
    importance: float
    strength: float
    relevance: float
    score: float


def known(book: Book, scenes: Scenes = everywhere) -> list[Known]:
    """Whom the NPCs of some scenes remember, those first with whom they spoke last. Blocks."""
    rows = book.database.execute(
        "SELECT stream, npc, player, SUM(line), SUM(1 - line), MAX(ts), "
        "(SELECT name FROM lines l WHERE l.stream=s.stream AND l.npc=s.npc AND l.player=s.player "
        "AND own=0 ORDER BY number DESC LIMIT 1) FROM ("
        "SELECT stream, npc, player, 1 AS line, ts FROM lines UNION ALL "
        "SELECT stream, npc, player, 0, ts FROM memories WHERE kind='fact') s "
        "GROUP BY stream, npc, player ORDER BY MAX(ts) DESC"
    )
    return [
        Known(stream, npc, player, name or player, lines, facts, last)
        for stream, npc, player, lines, facts, last, name in rows
        if scenes(stream)
    ]


def seen(
    book: Book,
    settings: MemorySettings,
    npc: str,
    player: str,
    query: Vectors | None,
    by: str,
    now: int,
    scenes: Scenes = everywhere,
) -> list[Seen]:
    """All that the NPCs of an id remember of a player in some scenes, best first. Blocks.

    Args:
        query: vector of a line, float32 [dim]; None for scores without one.
        by: name of what made it.
        now: ms.
    """
    where, values = "npc=? AND player=?", (npc, player)
    found = {m.id: m for m in book.memories(where, values) if scenes(m.owner.stream)}
    near = relevances(book, where, values, query, by)
    points = scores(
        [m.importance for m in found.values()],
        [now - m.ts for m in found.values()],
        [near.get(id, 0.0) for id in found],
        [True] * len(found),
        settings,
    )
    shown = [
        _shown(m, strength(m.importance, now - m.ts, settings), near.get(m.id, 0.0), float(p))
        for m, p in zip(found.values(), points, strict=True)
    ]
    return sorted(shown, key=lambda m: (m.kind == "summary", m.score), reverse=True)


def _shown(memory: Memory, left: float, relevance: float, score: float) -> Seen:
    owner, circle = memory.owner, memory.circle
    return Seen(
        memory.id,
        owner.stream,
        owner.npc,
        owner.player,
        memory.kind,
        memory.text,
        memory.ts,
        None if circle is None else sorted(circle),
        sorted(memory.present),
        round(memory.importance, 3),
        round(left, 3),
        round(relevance, 3),
        round(score, 3),
    )
