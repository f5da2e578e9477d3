"""A scene pack: a folder with a `scene.yaml` (what is true in one place) and its people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scenes.actions import USUAL, Action, read_actions
from scenes.conditions import Condition
from scenes.document import PackError, Scalar, Section, read_document
from scenes.entities import Surroundings, read_surroundings
from scenes.lore import MAX_TOKENS, LoreEntry, read_lore
from scenes.news import News, read_news
from scenes.reactions import Reaction, read_reactions

__all__ = ["PackError", "ScenePack", "load_pack"]

#: Characters. About four make a token, and the whole text is read by the model for every scene.
MAX_TEXT = 32_000
MAX_TITLE = 100
MAX_META = 32
MAX_META_TEXT = 200
MAX_EVENTS = 64
MAX_NPCS = 256
MAX_LORE_FILES = 64
MAX_CONTEXT = 128
MAX_QUESTS = 64
_NO_THING = "{}: must be an entity's id, a dot, and one of its keys"


@dataclass(frozen=True, slots=True)
class ScenePack:
    """One place as its author wrote it. Its people are read by `npc.persona`.

    Attributes:
        folder: where it lies.
        id: unique among the packs a server opens.
        title: for people.
        text: the lore: what everybody in this place knows.
        meta: what clients show of it (weather, time, …).
        allows_instances: whether players may open copies of their own.
        events: world events a player's game may raise.
        npcs: persona files, in order.
        actions: what its people can be able to do, by name: the usual things and its own.
        context: what a player's game may tell of the player (`context.set`), by key.
        quests: quest files, in order.
        lore: what there is to know beside the text, of the scene file and of its lore files.
        lore_tokens: most tokens of lore in one turn; 0 leaves it to the server's settings.
        reactions: what moves the feelings of everybody here.
        news: what people here are told of events, and whom that wakes.
        surroundings: space, and what is in it beside people.
    """

    folder: Path
    id: str
    title: str
    text: str
    meta: Mapping[str, Scalar]
    allows_instances: bool
    events: frozenset[str]
    npcs: tuple[Path, ...]
    lore: tuple[LoreEntry, ...] = ()
    lore_tokens: int = 0
    actions: Mapping[str, Action] = field(default_factory=lambda: USUAL)
    context: frozenset[str] = frozenset()
    quests: tuple[Path, ...] = ()
    reactions: tuple[Reaction, ...] = ()
    news: tuple[News, ...] = ()
    surroundings: Surroundings = field(default_factory=Surroundings)

    @property
    def file(self) -> Path:
        """The scene file itself."""
        return self.folder / "scene.yaml"


def load_pack(folder: Path) -> ScenePack:
    """Read and check the scene file of a pack.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    scene = read_document(folder / "scene.yaml")
    pack = ScenePack(
        folder=folder,
        id=scene.id("id"),
        title=scene.text("title", MAX_TITLE),
        text=scene.text("text", MAX_TEXT),
        meta=scene.scalars("meta", MAX_META, MAX_META_TEXT),
        allows_instances=scene.flag("instances", default=False),
        events=_names(scene, "events", MAX_EVENTS),
        npcs=_npcs(scene, folder),
        lore=_lore(scene, folder),
        lore_tokens=scene.number("lore_tokens", 1, MAX_TOKENS, default=0),
        actions={**USUAL, **{action.name: action for action in read_actions(scene)}},
        context=_names(scene, "context", MAX_CONTEXT),
        quests=_files(scene, folder, "quests", MAX_QUESTS),
        reactions=read_reactions(scene),
        news=read_news(scene),
        surroundings=read_surroundings(scene),
    )
    scene.finish()
    check_rules(scene, "reactions", pack.reactions, pack)
    check_rules(scene, "news", pack.news, pack)
    return pack


def check_rules(
    section: Section, field: str, rules: Sequence[Reaction | News], pack: ScenePack
) -> None:
    """Complain about the first rule of a field that waits or asks for what is not in the scene.
    Quests are for others to check.

    Raises:
        PackError: names the rule.
    """
    line = section.line_of(field)
    for at, rule in enumerate(rules):
        name = rule.name if isinstance(rule, News) else rule.names[0]
        if rule.cause == "thing" and name not in pack.surroundings.names():
            section.fail(f"{field}[{at}].thing", _NO_THING.format(name), line)
        for condition in rule.when:
            if problem := lack(condition, pack):
                section.fail(f"{field}[{at}].when.{condition.about}", problem, line)


def lack(condition: Condition, pack: ScenePack) -> str:
    """What the scene file has not that a condition asks for; "" if it has all. Quests and feelings
    are not looked at."""
    name = condition.name
    match condition.about:
        case "world" if name not in pack.meta:
            return f"{name}: the scene file has no such fact under meta"
        case "things" if name not in pack.surroundings.names():
            return _NO_THING.format(name)
        case "flags" if name not in pack.context:
            return f"{name}: the scene file does not list it under context"
        case "items" if f"item.{name}" not in pack.context:
            return f"{name}: the scene file does not list item.{name} under context"
    return ""


def _names(scene: Section, what: str, most: int) -> frozenset[str]:
    names: set[str] = set()
    for at, (line, name) in enumerate(scene.texts(what, most, MAX_TITLE)):
        item = f"{what}[{at}]"
        scene.check_id(item, name, line)
        if name in names:
            scene.fail(item, f"{name!r} is listed twice", line)
        names.add(name)
    return frozenset(names)


def _npcs(scene: Section, folder: Path) -> tuple[Path, ...]:
    files = _files(scene, folder, "npcs", MAX_NPCS)
    if not files:
        scene.fail("npcs", "a scene needs at least one NPC file")
    return files


def _lore(scene: Section, folder: Path) -> tuple[LoreEntry, ...]:
    entries = {entry.id: entry for entry in read_lore(scene)}
    for file in _files(scene, folder, "lore_files", MAX_LORE_FILES):
        section = read_document(file)
        for entry in read_lore(section):
            if entry.id in entries:
                section.fail("lore", f"{entry.id!r} is the id of another entry of this scene")
            entries[entry.id] = entry
        section.finish()
    return tuple(entries.values())


def _files(scene: Section, folder: Path, what: str, most: int) -> tuple[Path, ...]:
    root = folder.resolve()
    files: dict[Path, None] = {}
    for at, (line, name) in enumerate(scene.texts(what, most, MAX_META_TEXT)):
        item, path = f"{what}[{at}]", folder / name
        # A pack may come from a stranger: it must not make us read other files of this machine.
        if not path.resolve().is_relative_to(root):
            scene.fail(item, f"{name!r} leads out of the pack's folder", line)
        if path in files:
            scene.fail(item, f"{name!r} is listed twice", line)
        if not path.is_file():
            scene.fail(item, f"there is no file {name!r} in the pack", line)
        files[path] = None
    return tuple(files)
