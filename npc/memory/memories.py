"""The memory of all NPCs of a node, as the event loop sees it.

Whatever blocks happens in two threads of its own: one that alone uses the book, one that makes
vectors and yields to everything else. Nobody waits for a change to be written; what is asked comes
after all changes that were made before.
"""

import asyncio
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
import structlog

from engine.errors import ModelError
from engine.face import AnyEngine
from npc.memory.book import Amendment, Book
from npc.memory.forgetting import export, forget
from npc.memory.inspection import Known, Seen, known, seen
from npc.memory.recall import Recall
from npc.memory.records import Recollection, Scenes, Spoken, everywhere
from npc.memory.scribe import Scribe
from npc.memory.vectors import Embedder, HashingVectors, SentenceVectors, at_hand
from npc.purse import PurseOf, free
from npc.settings import MemorySettings
from npc.transcript import Audience

#: Recollections that are kept for the next line.
_RECOLLECTIONS = 4096
#: Facts that get their vectors anew at a time, after another embedder made the old ones.
_RENEWED = 64
_FADE_S = 3600.0
#: How much less of a processor the thread of vectors gets than those that speak (Unix nice).
_NICE = 10

_log = structlog.get_logger("troupe.memory")
Result = TypeVar("Result")
Params = ParamSpec("Params")


class Memories:
    """What NPCs remember. Open it before scenes are, close it after them and before the engine.

    Attributes:
        settings: as given.
    """

    def __init__(
        self,
        book: Book,
        embedder: Embedder,
        settings: MemorySettings,
        scribe: Scribe,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` tells seconds since 1970."""
        self.settings = settings
        self._book = book
        self._embedder = embedder
        self._recall = Recall(book, settings, embedder.name)
        self._scribe = scribe
        self._clock = clock
        self._books = ThreadPoolExecutor(1, "memory")
        self._vectors = ThreadPoolExecutor(1, "memory-vectors", initializer=_yield_to_speech)
        self._waiting: deque[Spoken | Amendment] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._recollections: OrderedDict[tuple[str, str, str, Audience], Recollection] = (
            OrderedDict()
        )
        self._forgotten = 0  # grows with everybody who is
        self._closed = False
        self._counts = dict.fromkeys(
            ("lines", "lost", "facts", "faded", "recalls", "recalls_late", "forgotten"), 0
        )

    @classmethod
    async def open(
        cls,
        path: Path | None,
        settings: MemorySettings,
        *,
        data_dir: Path,
    ) -> "Memories":
        """Open the book.

        Args:
            path: of the file; None remembers until the process ends.
            data_dir: where the sentence model lies, or is put.

        Raises:
            MemoryFileError: the file cannot be used.
            ModelError: there is no sentence model, though settings insist on it.
        """
        embedder = await asyncio.to_thread(_embedder, settings, data_dir)
        book = await asyncio.to_thread(Book, path, settings)
        _log.info(
            "memory opened",
            file=str(path) if path else "none: until this process ends",
            vectors=embedder.name,
            search=book.searches_by,
        )
        return cls(book, embedder, settings, Scribe(None, settings, 0))

    def start(
        self, engine: AnyEngine | None = None, priority: int = 2, purse_of: PurseOf = free
    ) -> None:
        """Make facts of talk, and let them fade, from now on.

        Args:
            engine: that makes the facts; None leaves that to rules.
            priority: class of what it is asked: that of ambient NPCs.
            purse_of: finds who pays for it.
        """
        self._scribe = Scribe(engine, self.settings, priority, purse_of)
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Give up what is being made of talk (it is made after the next start), write all changes.
        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self.written()
        await self._in_book(self._book.close)
        self._books.shutdown(wait=False)
        self._vectors.shutdown(wait=False, cancel_futures=True)

    # What is said

    def take(self, change: Spoken | Amendment) -> None:
        """Have something written. Returns at once."""
        if len(self._waiting) >= self.settings.waiting_changes:
            self._waiting.popleft()
            self._counts["lost"] += 1
        self._waiting.append(change)
        self._counts["lines"] += isinstance(change, Spoken)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def written(self) -> None:
        """Wait until all changes so far are."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    # What comes to mind

    def recall(
        self, stream: str, npc: str, asker: str, audience: Audience, text: str
    ) -> asyncio.Task[None]:
        """Look for what a line brings to mind; `recollected` has it once the task is done, and
        what comes to mind without the line's words as soon as that is found.

        Args:
            text: of the line; "" to leave it at what needs no vector.
        """
        self._counts["recalls"] += 1
        look = self._look(stream, npc, asker, audience, text)
        return asyncio.get_running_loop().create_task(look)

    def recollected(
        self, stream: str, npc: str, asker: str, audience: Audience
    ) -> Recollection | None:
        """What the latest line of the asker to this audience brought to mind; else what one in
        public did, which everybody may know; None if nothing was looked for.
        """
        found = self._recollections.get((stream, npc, asker, audience))
        return found or self._recollections.get((stream, npc, asker, None))

    def count_late(self) -> None:
        """A turn has begun before what its line brings to mind was found."""
        self._counts["recalls_late"] += 1

    # For people, of all scenes or some

    async def known(self, scenes: Scenes = everywhere) -> list[Known]:
        """Whom NPCs remember, and how much of them."""
        await self.written()
        return await self._in_book(known, self._book, scenes)

    async def inspect(
        self, npc: str, player: str, query: str = "", scenes: Scenes = everywhere
    ) -> list[Seen]:
        """All that an NPC remembers of a player, with scores as of now.

        Args:
            query: scores for a line with these words; "" for scores without one.
        """
        await self.written()
        vector = (await self._encode([query]))[0] if query else None
        by, now = self._embedder.name, self._now()
        look = partial(seen, self._book, self.settings, npc, player, vector, by, now, scenes)
        return await self._in_book(look)

    async def export(self, player: str, scenes: Scenes = everywhere) -> Mapping[str, object]:
        """All that is kept of a player, as plain JSON values."""
        await self.written()
        return await self._in_book(export, self._book, player, scenes)

    async def forget(self, player: str, npc: str | None = None, scenes: Scenes = everywhere) -> int:
        """Delete a player, or what one NPC remembers of them; returns how many records."""
        self._forgotten += 1
        await self.written()
        deleted = await self._in_book(forget, self._book, player, npc, scenes)
        # Others' recollections may quote them.
        for key in [key for key in self._recollections if scenes(key[0])]:
            del self._recollections[key]
        self._counts["forgotten"] += deleted
        return deleted

    def gauges(self) -> dict[str, float]:
        """Counts by name."""
        return {
            **{f"memory_{name}": float(count) for name, count in self._counts.items()},
            "memory_distilled_by_model": self._scribe.by_model,
            "memory_distilled_by_rules": self._scribe.by_rules,
            "memory_useless_answers": self._scribe.useless,
            "memory_waiting": len(self._waiting),
        }

    # In the background

    async def distil(self) -> bool:
        """Make facts of the talk that has waited longest; whether there was one."""
        await self.written()
        forgotten = self._forgotten
        talk = await self._in_book(self._book.due, self._now())
        if talk is None:
            return False
        made = await self._scribe.distil(talk)
        vectors = await self._encode([fact.text for fact in made.facts])
        facts = [(fact, row.tobytes()) for fact, row in zip(made.facts, vectors, strict=True)]
        if forgotten == self._forgotten:
            kept = await self._in_book(
                self._book.keep, talk, facts, made.summary, self._embedder.name
            )
            self._counts["facts"] += len(facts) * kept
        return True

    async def fade(self) -> None:
        """Forget what has lost its strength."""
        self._counts["faded"] += await self._in_book(self._book.fade, self._now())

    async def renew_vectors(self) -> bool:
        """Make vectors of facts that have none of this embedder; whether there were any."""
        name = self._embedder.name
        rows = await self._in_book(self._book.without_vectors, name, _RENEWED)
        if rows:
            vectors = await self._encode([text for _, text in rows])
            await self._in_book(self._book.set_vectors, [id for id, _ in rows], vectors, name)
        return bool(rows)

    async def _keep(self) -> None:
        """One piece of work at a time, with a pause after each."""
        faded = float("-inf")
        while True:
            try:
                if time.monotonic() - faded > _FADE_S:
                    faded = time.monotonic()
                    await self.fade()
                await self.renew_vectors()
                await self.distil()
            except Exception:  # memory that fails must not end for good, nor end the node
                _log.exception("memory could not be looked after")
            await asyncio.sleep(self.settings.distil_pause_s)

    async def _write(self) -> None:
        while self._waiting:
            changes = list(self._waiting)
            self._waiting.clear()
            try:
                await self._in_book(self._book.write, changes)
            except Exception:  # a full disk, most often: speech goes on
                self._counts["lost"] += len(changes)
                _log.exception("memories were not written", changes=len(changes))
        self._writing = None

    async def _look(self, stream: str, npc: str, asker: str, audience: Audience, text: str) -> None:
        about = partial(self._recall.about, stream, npc, asker, audience)
        try:
            found = await self._in_book(about, None, self._now())
            self._recollect((stream, npc, asker, audience), found)
            # If all facts come up anyway, their order is not worth a vector.
            if found.more and text:
                query = (await self._encode([text]))[0]
                found = await self._in_book(about, query, self._now())
                self._recollect((stream, npc, asker, audience), found)
        except Exception:  # an NPC that cannot remember speaks all the same
            _log.exception("nothing could be recalled")

    def _recollect(self, key: tuple[str, str, str, Audience], found: Recollection) -> None:
        self._recollections[key] = found
        self._recollections.move_to_end(key)
        if len(self._recollections) > _RECOLLECTIONS:
            self._recollections.popitem(last=False)

    def _now(self) -> int:
        return int(self._clock() * 1000)

    async def _encode(self, texts: Sequence[str]) -> np.ndarray:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._vectors, self._embedder.encode, texts)

    async def _in_book(
        self, work: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._books, partial(work, *args, **kwargs))


def _embedder(settings: MemorySettings, data_dir: Path) -> Embedder:
    if settings.vectors == "hashing":
        return HashingVectors()
    if settings.vectors == "auto" and not at_hand(data_dir):
        return HashingVectors()
    try:
        return SentenceVectors(data_dir)
    except ModelError:
        if settings.vectors == "sentence":
            raise
        _log.exception("the sentence model cannot be used; memory finds shared words only")
        return HashingVectors()


def _yield_to_speech() -> None:
    """Give this thread less of the processors than others. Linux can do so for one thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
