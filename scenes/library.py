"""Which scenes are open, and the prompt prefixes that are kept warm for them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.api import AsyncEngine
from engine.prefixes import Prefix
from scenes.document import PackError
from scenes.pack import ScenePack

#: Told what is being warmed, and how many prefixes of how many are.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class WarmScene:
    """A pack whose prefixes are in the engine's cache.

    Attributes:
        pack: what was opened.
        root: the prefix all its parts share.
        parts: prefixes below it by name (one for each NPC).
    """

    pack: ScenePack
    root: Prefix
    parts: Mapping[str, Prefix]


class Library:
    """Holds the prefixes of open scenes, so that no player's first line pays for them.

    Attributes:
        scenes: by pack id.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._scenes: dict[str, WarmScene] = {}
        self._lock = asyncio.Lock()

    @property
    def scenes(self) -> Mapping[str, WarmScene]:
        """See the class."""
        return self._scenes

    async def open(
        self,
        pack: ScenePack,
        root_ids: Sequence[int],
        part_ids: Mapping[str, Sequence[int]],
        progress: Progress | None = None,
    ) -> WarmScene:
        """Compute a scene's prefixes and keep them. Packs are opened one after another.

        Args:
            root_ids: tokens of what all parts share.
            part_ids: tokens that follow them, by part.

        Raises:
            PackError: another open pack has this id.
            OutOfMemory: the prefixes do not fit the cache; nothing stays behind.
        """
        async with self._lock:
            if pack.id in self._scenes:
                other = self._scenes[pack.id].pack.file
                raise PackError(pack.file, 0, "id", f"{pack.id!r} is the id of {other} as well")
            root = self._engine.create_prefix(root_ids)
            parts: dict[str, Prefix] = {}
            try:
                for name, ids in part_ids.items():
                    parts[name] = self._engine.create_prefix(ids, root)
                nodes = [root, *parts.values()]
                for done, node in enumerate(nodes):
                    if progress is not None:
                        progress(f"Warming {pack.title}", done, len(nodes))
                    await self._engine.warm(node)
            except BaseException:
                self._release(WarmScene(pack, root, parts))
                raise
            scene = self._scenes[pack.id] = WarmScene(pack, root, parts)
            return scene

    async def close(self) -> None:
        """Give all prefixes back; running requests that use them go on. Idempotent."""
        async with self._lock:
            while self._scenes:
                self._release(self._scenes.popitem()[1])

    def _release(self, scene: WarmScene) -> None:
        for prefix in (*scene.parts.values(), scene.root):
            self._engine.release_prefix(prefix)
