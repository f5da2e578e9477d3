"""Which scenes are open, and the prompt prefixes that are kept for them."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from engine.face import AnyEngine
from engine.prefixes import Prefix
from scenes.document import PackError
from scenes.pack import ScenePack

#: Told what is being warmed, and how many prefixes of how many are.
Progress = Callable[[str, int, int], None]


class Texts(Protocol):
    """What a scene's prefixes say, as tokens. Asked when a prefix is first needed."""

    def root(self) -> Sequence[int]:
        """What all parts share."""

    def part(self, name: str) -> Sequence[int]:
        """What follows it in one part."""


class OpenPack:
    """One version of a pack, and those of its prefixes that were needed so far.

    A part that nobody asked for costs nothing here: no tokens, no node, no block.

    Attributes:
        pack: what was opened.
        warmed: the parts that are kept computed.
    """

    def __init__(self, engine: AnyEngine, pack: ScenePack, texts: Texts) -> None:
        self.pack = pack
        self.warmed: tuple[str, ...] = ()
        self._engine = engine
        self._texts = texts
        self._root: Prefix | None = None
        self._parts: dict[str, Prefix] = {}

    @property
    def needed(self) -> Collection[str]:
        """Parts whose prefixes exist."""
        return self._parts.keys()

    def part(self, name: str) -> Prefix:
        """The prefix of one part; it is computed with the first request that has it.

        Raises:
            ContextExceeded: it is too long for the model.
        """
        prefix = self._parts.get(name)
        if prefix is None:
            if self._root is None:
                self._root = self._engine.create_prefix(self._texts.root())
            prefix = self._engine.create_prefix(self._texts.part(name), self._root)
            self._parts[name] = prefix
        return prefix

    async def warm(self, names: Sequence[str], progress: Progress | None = None) -> None:
        """Compute parts now, and keep them while the pack is open.

        Raises:
            ContextExceeded, OutOfMemory: they are too long for the model or the cache.
        """
        parts = [self.part(name) for name in names]
        nodes = [self._root, *parts] if self._root is not None and parts else []
        self.warmed = tuple(names)
        for done, node in enumerate(nodes):
            assert node is not None
            if progress is not None:
                progress("Warming the scenes", done, len(nodes))
            await self._engine.warm(node)

    def release(self) -> None:
        """Give all prefixes back; running requests that use them go on. Idempotent."""
        for prefix in self._parts.values():
            self._engine.release_prefix(prefix)
        if self._root is not None:
            self._engine.release_prefix(self._root)
        self._parts, self._root = {}, None


class Library:
    """The open packs, each in its newest version.

    Attributes:
        packs: by id.
    """

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._packs: dict[str, OpenPack] = {}
        self._lock = asyncio.Lock()

    @property
    def packs(self) -> Mapping[str, OpenPack]:
        """See the class."""
        return self._packs

    async def open(
        self,
        pack: ScenePack,
        texts: Texts,
        warm: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> OpenPack:
        """Take a pack in and keep some of its parts warm. Packs are opened one after another.

        Raises:
            PackError: another open pack has this id.
            ContextExceeded, OutOfMemory: they do not fit; nothing stays behind.
        """
        async with self._lock:
            if pack.id in self._packs:
                other = self._packs[pack.id].pack.file
                raise PackError(pack.file, 0, "id", f"{pack.id!r} is the id of {other} as well")
            opened = OpenPack(self._engine, pack, texts)
            await self._warm(opened, warm, progress)
            self._packs[pack.id] = opened
            return opened

    async def replace(
        self, pack: ScenePack, texts: Texts, warm: Sequence[str], swap: Callable[[OpenPack], None]
    ) -> OpenPack:
        """Put a new version in the place of an open one.

        Whatever the old version has in use exists in the new one before anybody sees it, so that
        the exchange itself cannot fail.

        Args:
            texts: of the new version; `part` of a name it does not know raises KeyError.
            swap: called in the moment of the exchange; afterwards the old version's prefixes are
                given back. Requests that use them go on.

        Raises:
            ContextExceeded, OutOfMemory: it does not fit; the old version stays.
        """
        async with self._lock:
            old, new = self._packs[pack.id], OpenPack(self._engine, pack, texts)
            await self._warm(new, warm)
            try:
                for name in old.needed:
                    try:
                        new.part(name)
                    except KeyError:  # this part is gone
                        continue
                swap(new)
            except BaseException:
                new.release()
                raise
            self._packs[pack.id] = new
            old.release()
            return new

    async def close(self) -> None:
        """Close all packs. Idempotent."""
        async with self._lock:
            while self._packs:
                self._packs.popitem()[1].release()

    @staticmethod
    async def _warm(
        opened: OpenPack, names: Sequence[str], progress: Progress | None = None
    ) -> None:
        try:
            await opened.warm(names, progress)
        except BaseException:
            opened.release()
            raise
