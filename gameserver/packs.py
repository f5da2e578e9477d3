"""Where the scene packs are."""

import importlib.resources
from collections.abc import Iterable
from pathlib import Path


class CannotFind(Exception):
    """There is no pack where one was named.

    Attributes:
        folder: where.
        problem: what was looked for.
    """

    def __init__(self, folder: Path, problem: str) -> None:
        self.folder = folder
        self.problem = problem
        super().__init__(f"{folder} {problem}")


def find_packs(folders: tuple[str, ...]) -> tuple[Path, ...]:
    """The scene packs in `folders`, each a pack or a folder of packs; the tavern if there are none.

    Raises:
        CannotFind: a folder holds no pack.
    """
    if not folders:
        return (Path(str(importlib.resources.files("scenes") / "packs" / "gilded_griffin")),)
    packs: list[Path] = []
    for folder in map(Path, folders):
        found = sorted(file.parent for file in folder.glob("*/scene.yaml"))
        if (folder / "scene.yaml").is_file():
            found = [folder]
        if not found:
            raise CannotFind(folder, "is neither a scene pack (no scene.yaml) nor holds any")
        packs += found
    return tuple(packs)


def pack_of(stream: str, packs: Iterable[str]) -> str:
    """The id of the pack that a running scene plays; its own where no pack has one like it.

    Args:
        packs: ids; they may hold dots, as do those of instances.
    """
    fitting = (pack for pack in packs if stream == pack or stream.startswith(f"{pack}."))
    return max(fitting, key=len, default=stream)
