"""A scene pack: a folder with a `scene.yaml` (what is true in one place) and its people."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scenes.document import PackError, Scalar, Section, read_document

__all__ = ["PackError", "ScenePack", "load_pack"]

#: Characters. About four make a token, and the whole text is read by the model for every scene.
MAX_TEXT = 32_000
MAX_TITLE = 100
MAX_META = 32
MAX_META_TEXT = 200
MAX_EVENTS = 64
MAX_NPCS = 256


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
    """

    folder: Path
    id: str
    title: str
    text: str
    meta: Mapping[str, Scalar]
    allows_instances: bool
    events: frozenset[str]
    npcs: tuple[Path, ...]

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
        events=_events(scene),
        npcs=_npcs(scene, folder),
    )
    scene.finish()
    return pack


def _events(scene: Section) -> frozenset[str]:
    names: set[str] = set()
    for at, (line, name) in enumerate(scene.texts("events", MAX_EVENTS, MAX_TITLE)):
        field = f"events[{at}]"
        scene.check_id(field, name, line)
        if name in names:
            scene.fail(field, f"{name!r} is listed twice", line)
        names.add(name)
    return frozenset(names)


def _npcs(scene: Section, folder: Path) -> tuple[Path, ...]:
    root = folder.resolve()
    files: dict[Path, None] = {}
    for at, (line, name) in enumerate(scene.texts("npcs", MAX_NPCS, MAX_META_TEXT)):
        field, path = f"npcs[{at}]", folder / name
        # A pack may come from a stranger: it must not make us read other files of this machine.
        if not path.resolve().is_relative_to(root):
            scene.fail(field, f"{name!r} leads out of the pack's folder", line)
        if path in files:
            scene.fail(field, f"{name!r} is listed twice", line)
        if not path.is_file():
            scene.fail(field, f"there is no file {name!r} in the pack", line)
        files[path] = None
    if not files:
        scene.fail("npcs", "a scene needs at least one NPC file")
    return tuple(files)
