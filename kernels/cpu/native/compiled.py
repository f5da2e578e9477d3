"""The decorator of compiled functions, and where their machine code is kept.

Compiling takes some ten seconds, so it is done once per machine. numba notices when the file of a
kept function changes, but not when a file changes whose code became part of it; therefore the
folder is named after the contents of all of them.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.core.caching import FunctionCache

_log = logging.getLogger("troupe.kernels")
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
    compiled = njit(function, **_OPTIONS)
    try:
        compiled._cache = _Cache(function)
    except (OSError, RuntimeError):  # nowhere to write: compiled at every start
        pass
    finally:
        numba.config.CACHE_DIR = before
    return compiled


def _folder() -> Path:
    """In the user's cache."""
    content = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        content.update(file.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "troupe" / "kernels" / content.hexdigest()[:16]


class _Cache(FunctionCache):  # type: ignore[misc]  # numba has no types  # type: ignore[misc]  # numba is not typed
    """numba's, except that files it cannot read or write cost time and never the start: a full
    disk, or a machine that went down, leaves halves of them behind.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever half a file may be read as
            _log.warning("what was compiled before cannot be read, compiling again: %s", error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            try:
                super().save_overload(sig, data)
            except Exception:  # an index that cannot be read
                self.flush()
                super().save_overload(sig, data)
        except Exception as error:
            _log.warning("what was compiled cannot be kept in %s: %s", self.cache_path, error)
