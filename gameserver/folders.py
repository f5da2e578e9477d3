"""Where models are kept (what a program can fetch again), and whether results can be written."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gameserver.settings import Settings


#: What NPCs remember, in the data folder that was named.
MEMORY_FILE = "memory.sqlite3"


def data_folder(settings: "Settings", given: Path | None = None) -> Path:
    """Where models are kept: in the folder given on the command line, else in that of the settings,
    else in the user's."""
    chosen = settings.models or settings.data
    return given or (Path(chosen) if chosen else user_cache_folder())


def user_cache_folder() -> Path:
    """Our folder among this user's caches, where the platform keeps them."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "troupe"


class CannotWrite(Exception):
    """A result could not be written where it was to go; the message says where and why."""


def check_writable(file: Path) -> None:
    """Make sure before long work that its result can be written to `file`, which is there
    afterwards, empty if it was not before.

    Raises:
        CannotWrite: it cannot.
    """
    try:
        file.open("a").close()
    except OSError as error:
        raise CannotWrite(f"cannot write {file}: {error.strerror}") from error
