"""The decorator of compiled functions, and where their machine code is kept.

Compiling takes some ten seconds, so it is done once per machine. numba notices when the file of a
kept function changes, but not when a file changes whose code became part of it; therefore the
folder is named after the contents of all of them.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import njit

_OPTIONS = {"nogil": True, "error_model": "numpy"}


def inlined(function: Callable[..., Any]) -> Any:
    """Compile as part of whoever calls it."""
    return njit(function, **_OPTIONS)


def reordered(function: Callable[..., Any]) -> Any:
    """As `inlined`, and sums may be added up in vectors: in another order, but always the same."""
    return njit(function, fastmath=True, **_OPTIONS)


def kept(function: Callable[..., Any]) -> Any:
    """Compile and keep the machine code for the next start, where a folder can be written."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_folder())
    try:
        return njit(function, cache=True, **_OPTIONS)
    except (OSError, RuntimeError):  # nowhere to write: compiled at every start
        return njit(function, **_OPTIONS)
    finally:
        numba.config.CACHE_DIR = before


def _folder() -> Path:
    """In the user's cache."""
    content = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        content.update(file.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "troupe" / "kernels" / content.hexdigest()[:16]
