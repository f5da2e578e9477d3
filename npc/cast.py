"""Everybody who can be spoken to."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import InvalidRequest
from engine.face import AnyEngine
from npc.actions.repertoire import everything
from npc.dialogue import Dialogue
from npc.judgement import GRAMMAR
from npc.lore import lorebook, triggers
from npc.notes import Place, SourceMaker
from npc.prompt import PromptWriter
from npc.quests.document import read_quests
from npc.quests.quest import Quest, related
from npc.roster import Roster, load_roster
from npc.settings import ReplySettings
from npc.shelf import Shelf
from scenes.actions import Action
from scenes.conditions import Condition, WorldState
from scenes.document import PackError, Scalar
from scenes.library import Library, OpenPack, Progress
from scenes.pack import ScenePack, load_pack

#: NPCs whose prefixes are computed before players come, unless settings say otherwise.
WARM_NPCS = 64


class SceneTexts:
    """What the prefixes of one version of a scene say."""

    def __init__(
        self, pack: ScenePack, npcs: Roster, writer: PromptWriter, *, may_act: bool
    ) -> None:
        """`may_act` is whether NPCs are told what they can do."""
        self._pack = pack
        self._npcs = npcs
        self._writer = writer
        self._may_act = may_act

    def root(self) -> Sequence[int]:
        """See `scenes.library.Texts`."""
        return self._writer.scene(self._pack, self._npcs.values())

    def part(self, name: str) -> Sequence[int]:
        """See `scenes.library.Texts`; parts are named by NPC id."""
        persona = self._npcs.persona(name)
        known = persona if self._may_act else replace(persona, actions=())
        return self._writer.persona(known, self._pack.lore)


class OpenScene:
    """One version of a pack that can be played, in any number of running scenes.

    Attributes:
        id, title, meta, allows_instances, events, reactions, news, context, surroundings, folder:
            as in `ScenePack`.
        npcs: who is there, by id, in the order of the scene file.
        quests: by id, in the order of the scene file.
        noticed: the things of the scene, ENTITY.KEY, of which it matters when they change.
        related: ids of the NPCs about whose feelings a quest asks.
    """

    def __init__(
        self,
        opened: OpenPack,
        npcs: Roster,
        engine: AnyEngine,
        writer: PromptWriter,
        replies: ReplySettings,
        sources: Sequence[SourceMaker] = (),
        quests: Mapping[str, Quest] | None = None,
    ) -> None:
        pack = opened.pack
        self.id = pack.id
        self.title = pack.title
        self.meta: Mapping[str, Scalar] = pack.meta
        self.allows_instances = pack.allows_instances
        self.events = pack.events
        self.reactions = pack.reactions
        self.news = pack.news
        self.context = pack.context
        self.surroundings = pack.surroundings
        self.quests = quests or {}
        self.noticed = _noticed(pack, npcs, self.quests)
        self.related = related(self.quests)
        self.folder = pack.folder
        self.npcs = npcs
        self._opened = opened
        self._engine = engine
        self._writer = writer
        self._replies = replies
        self._sources = sources
        self._triggers = triggers(pack.lore)

    @property
    def warmed(self) -> Sequence[str]:
        """The NPCs whose prefixes are kept computed."""
        return self._opened.warmed

    def dialogue(self, npc: str, stream: str, shelf: Shelf | None = None) -> Dialogue:
        """A dialogue of one NPC in the running scene `stream`, which remembers what is on `shelf`.

        Raises:
            ContextExceeded: scene and persona are too long for the model.
        """
        persona, prefix = self.npcs.persona(npc), self._opened.part(npc)
        made = (make(Place(self.id, stream, npc)) for make in self._sources)
        dialogue = Dialogue(
            persona,
            prefix,
            stream,
            self._engine,
            self._writer,
            self._replies,
            sources=[source for source in made if source is not None],
            shelf=shelf,
        )
        self.recast(dialogue)
        return dialogue

    def recast(self, dialogue: Dialogue) -> None:
        """Let a dialogue that an older version made follow this one from its next turn on."""
        npc = dialogue.persona.id
        persona, pack = self.npcs.persona(npc), self._opened.pack
        dialogue.recast(
            persona,
            self._opened.part(npc),
            self.npcs.names,
            lorebook(persona, self._triggers),
            persona.lore_tokens or pack.lore_tokens,
            self.reactions,
        )
        dialogue.state = WorldState(pack.meta)

    def actions(self, npc: str) -> Sequence[Action]:
        """What an NPC can do beside talking."""
        return self.npcs.persona(npc).actions if npc in self.npcs else ()

    def says_the_same(self, read: "Read") -> bool:
        """Whether a pack that was read anew is no different from this version."""
        mine = self._opened.pack
        same = read.pack == mine and list(read.npcs.items()) == list(self.npcs.items())
        return same and read.quests == self.quests


@dataclass(frozen=True, slots=True)
class Read:
    """A pack as its files say it."""

    pack: ScenePack
    npcs: Roster
    quests: Mapping[str, Quest]


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What reading a pack again has changed.

    Attributes:
        scene: its id.
        what: "unchanged", "changed", or "opened" for one that was not open.
        added, removed: ids of NPCs.
        renamed: ids of NPCs with another name.
        rewritten: ids of NPCs with other words or another kind; their names are as they were.
    """

    scene: str
    what: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()


class Cast:
    """The open packs of an engine.

    Attributes:
        engine: that speaks for everybody.
        scenes: by pack id, each in its newest version.
    """

    def __init__(
        self,
        engine: AnyEngine,
        replies: ReplySettings,
        warm_npcs: int = WARM_NPCS,
        sources: Sequence[SourceMaker] = (),
    ) -> None:
        """
        Args:
            warm_npcs: how many NPCs, of all packs together, are kept computed from the start; all
                others are computed when they are first spoken to.
            sources: of what NPCs have in mind, the most important last.
        """
        self.engine = engine
        self._replies = replies
        self._warm_npcs = warm_npcs
        self._sources = tuple(sources)
        self._writer = PromptWriter(engine.tokenizer, engine.chat)
        self._library = Library(engine)
        self._scenes: dict[str, OpenScene] = {}

    @property
    def scenes(self) -> Mapping[str, OpenScene]:
        """See the class."""
        return self._scenes

    async def open(self, folder: Path, progress: Progress | None = None) -> OpenScene:
        """Read a pack and warm the NPCs that players will need first.

        Args:
            progress: told what is being warmed, and how many prefixes of how many are.

        Raises:
            PackError: the pack is wrong, or its id is taken.
            ContextExceeded, OutOfMemory: it is too long for the model or the cache.
        """
        return await self._open(await asyncio.to_thread(_read, folder), progress)

    async def open_all(self, folders: Sequence[Path], progress: Progress) -> None:
        """Open packs: read them all, then warm. Errors are those of `open`, of the first pack."""
        read = []
        for done, folder in enumerate(folders):
            progress("Reading the scenes", done, len(folders))
            read.append(await asyncio.to_thread(_read, folder))
        for each in read:
            await self._open(each, progress)

    async def reload(self, folder: Path, swap: Callable[[OpenScene], None]) -> Reloaded:
        """Read a pack again, and go on with what it says now. Turns that are open end on the
        version they began with.

        Args:
            swap: told the new version in the moment from which on it counts.

        Raises:
            PackError, ContextExceeded, OutOfMemory: the new version cannot be used; the old one
                stays.
        """
        read = await asyncio.to_thread(_read, folder)
        pack, npcs = read.pack, read.npcs
        old = next((scene for scene in self._scenes.values() if scene.folder == folder), None)
        if old is None:
            scene = await self._open(read, None)
            return Reloaded(scene.id, "opened", added=tuple(npcs))
        if pack.id != old.id:
            problem = f"was {old.id!r} when the scene was opened; a running scene keeps its id"
            raise PackError(pack.file, 0, "id", problem)
        if old.says_the_same(read):
            return Reloaded(old.id, "unchanged")

        def exchange(opened: OpenPack) -> None:
            self._scenes[pack.id] = scene = self._scene(opened, read)
            swap(scene)

        await self._prepare(read)

        texts = self._texts(pack, npcs)
        await self._library.replace(pack, texts, self._first(pack.id, npcs), exchange)
        return _difference(pack.id, old.npcs, npcs)

    async def close(self) -> None:
        """Close all packs. Idempotent."""
        self._scenes.clear()
        await self._library.close()

    async def _open(self, read: Read, progress: Progress | None) -> OpenScene:
        pack, npcs = read.pack, read.npcs
        await self._prepare(read)
        if self._replies.feelings.judge and not self.engine.scripted:
            await self.engine.prepare(GRAMMAR)  # the first verdict must not hold up the event loop
        texts = self._texts(pack, npcs)
        opened = await self._library.open(pack, texts, self._first(pack.id, npcs), progress)
        scene = self._scenes[pack.id] = self._scene(opened, read)
        return scene

    async def _prepare(self, read: Read) -> None:
        """Compile what NPCs can do, so that no turn waits for it, and nothing wrong is found then.

        Raises:
            PackError: names the NPC and the action whose arguments no reply can be held to.
        """
        checked: set[Action] = set()
        for npc in read.npcs:
            actions = read.npcs.persona(npc).actions if read.npcs[npc].acts else ()
            for action in actions:
                if action in checked:
                    continue
                checked.add(action)
                try:
                    await self.engine.prepare(everything([action]).grammar())
                except InvalidRequest as error:
                    where = f"{npc}: actions {action.name}"
                    raise PackError(read.pack.file, 0, where, str(error)) from error

    def _texts(self, pack: ScenePack, npcs: Roster) -> SceneTexts:
        may_act = "lark" in self.engine.grammar_kinds
        return SceneTexts(pack, npcs, self._writer, may_act=may_act)

    def _first(self, scene_id: str, npcs: Roster) -> list[str]:
        """Whom to keep warm in a scene beside those of the others."""
        others = (scene for scene in self._scenes.values() if scene.id != scene_id)
        return npcs.first(max(self._warm_npcs - sum(len(scene.warmed) for scene in others), 0))

    def _scene(self, opened: OpenPack, read: Read) -> OpenScene:
        engine, writer, replies = self.engine, self._writer, self._replies
        return OpenScene(opened, read.npcs, engine, writer, replies, self._sources, read.quests)


def _read(folder: Path) -> Read:
    """A pack, its people and its quests. Blocks: run it in a thread."""
    pack = load_pack(folder)
    npcs = load_roster(pack)
    for at, news in enumerate(pack.news):
        if news.wakes and news.wakes not in npcs:
            problem = f"nobody here has the id {news.wakes!r}"
            raise PackError(pack.file, 0, f"news[{at}].wakes", problem)
    quests = read_quests(pack, {npc: npcs.persona(npc) for npc in npcs} if pack.quests else {})
    _check_asked(pack, npcs, quests)
    # A large world has many files, and nobody needs their paths any more.
    return Read(replace(pack, npcs=()), npcs, quests)


def _check_asked(pack: ScenePack, npcs: Roster, quests: Mapping[str, Quest]) -> None:
    """Complain about reactions and news that ask for a quest or a stage that is not there. News are
    for everybody, so they ask for everybody's quests."""
    public = {name: quest for name, quest in quests.items() if quest.shared}
    rules: list[tuple[str, Sequence[Condition], Mapping[str, Quest]]] = [
        *((f"news[{at}]", each.when, public) for at, each in enumerate(pack.news)),
        *((f"reactions: {each.id}", each.when, quests) for each in pack.reactions),
    ]
    for npc in npcs:
        for each in npcs.persona(npc).reactions:
            rules.append((f"{npc}: reactions: {each.id}", each.when, quests))
    for where, when, known in rules:
        for condition in when:
            if condition.about != "quests":
                continue
            if condition.name not in known:
                kind = "shared quest" if known is public else "quest"
                problem = f"there is no {kind} {condition.name!r} in this scene"
                raise PackError(pack.file, 0, f"{where}: when.quests", problem)
            for stage in condition.values:
                if stage not in known[condition.name].stages:
                    problem = f"{condition.name} has no stage {stage!r}"
                    raise PackError(pack.file, 0, f"{where}: when.quests", problem)


def _noticed(pack: ScenePack, npcs: Roster, quests: Mapping[str, Quest]) -> frozenset[str]:
    return frozenset(
        {each.name for each in pack.news if each.cause == "thing"}
        | {each.names[0] for each in pack.reactions if each.cause == "thing"}
        | {name for npc in npcs.values() for name in npc.notices}
        | {
            condition.name
            for quest in quests.values()
            for stage in quest.stages.values()
            for step in stage.steps
            for condition in step.when
            if condition.about == "things"
        }
    )


def _difference(scene: str, old: Roster, new: Roster) -> Reloaded:
    both = [npc for npc in new if npc in old]
    renamed = tuple(npc for npc in both if new[npc].name != old[npc].name)
    return Reloaded(
        scene,
        "changed",
        added=tuple(npc for npc in new if npc not in old),
        removed=tuple(npc for npc in old if npc not in new),
        renamed=renamed,
        rewritten=tuple(npc for npc in both if new[npc] != old[npc] and npc not in renamed),
    )
