"""How far things are left out: one level up or down at a time, with hysteresis.

Which level is right nobody can tell beforehand: one is added for as long as pressure stays high,
and taken back when it has been low for a while. In between the ladder stands still.
"""

from enum import IntEnum
from typing import Final

from gameserver.overload.settings import OverloadSettings

#: A level that is entered again so many times `down_s` after it was left was left too early.
_SOON = 4.0
#: How much longer than `down_s` it then takes to leave it, at most.
_MOST_PATIENCE: Final = 8.0


class Level(IntEnum):
    """What is left out; each level adds to those before it.

    NORMAL: nothing.
    MERGE: speech comes in fewer, larger frames.
    SHORT: replies are shorter; those of quest-givers only if somebody else waits for them.
    QUIET: NPCs that no player has spoken to hardly speak, and the model judges nothing.
    BARKS: NPCs that have barks say one of them instead of letting others wait too long.
    REFUSE: lines are refused sooner.
    """

    NORMAL = 0
    MERGE = 1
    SHORT = 2
    QUIET = 3
    BARKS = 4
    REFUSE = 5


class Ladder:
    """Attributes: level: where it stands."""

    def __init__(self, settings: OverloadSettings) -> None:
        self.level = Level.NORMAL
        self._settings = settings
        self._hot_since: float | None = None
        self._calm_since: float | None = None
        self._left_at = float("-inf")
        self._patience = 1.0

    def feel(self, pressure: float, now: float) -> bool:
        """Take note of the pressure at a time (seconds, never earlier than before). Returns whether
        the level has changed.
        """
        settings = self._settings
        if pressure >= settings.enter:
            self._calm_since = None
            self._hot_since = now if self._hot_since is None else self._hot_since
            if self.level < Level.REFUSE and now - self._hot_since >= settings.up_s:
                self._hot_since = now
                self._climb(now)
                return True
        elif pressure <= settings.leave:
            self._hot_since = None
            self._calm_since = now if self._calm_since is None else self._calm_since
            calm_s = settings.down_s * self._patience
            if self.level > Level.NORMAL and now - self._calm_since >= calm_s:
                self._calm_since = self._left_at = now
                self.level = Level(self.level - 1)
                return True
        else:
            self._hot_since = self._calm_since = None
        return False

    def _climb(self, now: float) -> None:
        self.level = Level(self.level + 1)
        too_early = now - self._left_at < _SOON * self._settings.down_s * self._patience
        self._patience = min(2 * self._patience, _MOST_PATIENCE) if too_early else 1.0
