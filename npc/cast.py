"""Everybody who can be spoken to."""

from collections.abc import Mapping
from pathlib import Path

from engine.api import AsyncEngine
from npc.dialogue import Dialogue
from npc.persona import Persona, load_personas
from npc.prompt import PromptWriter
from npc.settings import ReplySettings
from scenes.document import Scalar
from scenes.library import Library, Progress, WarmScene
from scenes.pack import load_pack


class OpenScene:
    """A pack that can be played, in any number of running scenes that share its prefixes.

    Attributes:
        id, title, meta, allows_instances, events: as in `ScenePack`.
        npcs: who is there, by id, in the order of the scene file.
    """

    def __init__(
        self,
        warm: WarmScene,
        npcs: Mapping[str, Persona],
        engine: AsyncEngine,
        writer: PromptWriter,
        replies: ReplySettings,
    ) -> None:
        self.id = warm.pack.id
        self.title = warm.pack.title
        self.meta: Mapping[str, Scalar] = warm.pack.meta
        self.allows_instances = warm.pack.allows_instances
        self.events = warm.pack.events
        self.npcs = npcs
        self._warm = warm
        self._engine = engine
        self._writer = writer
        self._replies = replies

    def dialogue(self, npc_id: str, stream: str) -> Dialogue:
        """A fresh dialogue of one NPC in the running scene `stream`."""
        others = tuple(npc.name for npc in self.npcs.values() if npc.id != npc_id)
        return Dialogue(
            self.npcs[npc_id],
            self._warm.parts[npc_id],
            stream,
            self._engine,
            self._writer,
            self._replies,
            others,
        )


class Cast:
    """The open packs of an engine.

    Attributes:
        engine: that speaks for everybody.
        scenes: by pack id.
    """

    def __init__(self, engine: AsyncEngine, replies: ReplySettings) -> None:
        self.engine = engine
        self._replies = replies
        self._writer = PromptWriter(engine.tokenizer, engine.chat)
        self._library = Library(engine)
        self._scenes: dict[str, OpenScene] = {}

    @property
    def scenes(self) -> Mapping[str, OpenScene]:
        """See the class."""
        return self._scenes

    async def open(self, folder: Path, progress: Progress | None = None) -> OpenScene:
        """Read a pack and warm its prefixes; afterwards nobody's first line pays for them.

        Args:
            progress: told what is being warmed, and how many prefixes of how many are.

        Raises:
            PackError: the pack is wrong, or its id is taken.
            ContextExceeded, OutOfMemory: it is too long for the model or the cache.
        """
        pack = load_pack(folder)
        npcs = load_personas(pack)
        warm = await self._library.open(
            pack,
            self._writer.scene(pack, npcs.values()),
            {npc.id: self._writer.persona(npc) for npc in npcs.values()},
            progress,
        )
        scene = OpenScene(warm, npcs, self.engine, self._writer, self._replies)
        self._scenes[scene.id] = scene
        return scene

    async def close(self) -> None:
        """Close all packs. Idempotent."""
        self._scenes.clear()
        await self._library.close()
