"""Reading scene packs again while players talk."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
import watchfiles

from engine.errors import EngineError
from gameserver.packs import CannotFind
from npc.cast import Cast, OpenScene, Reloaded
from npc.safety.rules import RulesError
from scenes.pack import PackError

_log = structlog.get_logger("troupe.reload")
#: Editors write a file in several strokes; a reload waits until they are done, in ms.
_SETTLE_MS = 200


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a pack, or the rules for speech, stay as they were.

    Attributes:
        file, line, field: where the mistake is; line 0 and field "" if it concerns more.
        problem: what is wrong and what would be right.
    """

    file: str
    line: int
    field: str
    problem: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a reload has done: scenes that follow their files, and faults in those that do not."""

    scenes: tuple[Reloaded, ...]
    errors: tuple[Fault, ...]

    def as_json(self) -> dict[str, object]:
        """For the console."""
        return {
            "scenes": [asdict(scene) for scene in self.scenes],
            "errors": [asdict(fault) for fault in self.errors],
        }


class Reloader:
    """Lets running scenes follow their files, one reload at a time.

    Args:
        find: the folders of the packs that should be open.
        adopt: told each new version in the moment from which on it counts.
        rules: reads the rules for speech again, or raises `RulesError`.
    """

    def __init__(
        self,
        cast: Cast,
        find: Callable[[], tuple[Path, ...]],
        adopt: Callable[[OpenScene], None],
        rules: Callable[[], None] = lambda: None,
    ) -> None:
        self._cast = cast
        self._find = find
        self._adopt = adopt
        self._rules = rules
        self._lock = asyncio.Lock()

    async def reload(self) -> Report:
        """Read all packs and the rules for speech again. What cannot be used, or is gone, keeps its
        old version.
        """
        async with self._lock:
            scenes: list[Reloaded] = []
            faults: list[Fault] = []
            try:
                self._rules()
            except RulesError as error:
                faults.append(Fault(str(error.file), 0, "", error.problem))
            try:
                folders = self._find()
            except CannotFind as error:
                folders = ()
                faults.append(Fault(str(error.folder), 0, "", error.problem))
            else:
                faults += self._gone(folders)
            for folder in folders:
                try:
                    scenes.append(await self._cast.reload(folder, self._adopt))
                except PackError as error:
                    faults.append(Fault(str(error.file), error.line, error.field, error.problem))
                except EngineError as error:
                    faults.append(Fault(str(folder), 0, "", str(error)))
            for fault in faults:
                _log.warning("this stays as it was", **asdict(fault))
            for scene in scenes:
                if scene.what != "unchanged":
                    _log.info("a scene follows its files", **asdict(scene))
            return Report(tuple(scenes), tuple(faults))

    async def watch(self, places: Sequence[Path]) -> None:
        """Reload whenever a file below one of `places` changes, until cancelled."""
        async for _ in watchfiles.awatch(*places, debounce=_SETTLE_MS, step=_SETTLE_MS // 2):
            await self.reload()

    def _gone(self, folders: tuple[Path, ...]) -> list[Fault]:
        problem = "is gone; its scene goes on as it was until the server is started again"
        open_folders = (scene.folder for scene in self._cast.scenes.values())
        return [Fault(str(f), 0, "", problem) for f in open_folders if f not in folders]
