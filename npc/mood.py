"""An NPC's mood: what stirs it, and how it comes back to rest. Pure; time is handed in.

Each mood has a level of its own that halves in a fixed time, so the order of two things that happen
at once does not matter, and what is shown never flickers: all levels fall alike, until none of them
is strong enough and the resting mood is back.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from scenes.document import Section
from scenes.reactions import MOODS

#: A mood weaker than this does not show.
FAINT = 0.1
#: Too weak to be worth keeping.
_GONE = 0.001
_HALF_LIFE_S = 600
_HISTORY = 64
_LONGEST_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Temper:
    """How an NPC's mood behaves.

    Attributes:
        resting: the mood it comes back to.
        half_life_s: seconds in which everything else loses half its strength.
    """

    resting: str = MOODS[0]
    half_life_s: int = _HALF_LIFE_S


@dataclass(frozen=True, slots=True)
class Feeling:
    """A mood as it shows.

    Attributes:
        name: one of `MOODS`.
        level: from 0 to 1; 0 for a resting mood that nothing has stirred.
    """

    name: str
    level: float


@dataclass(frozen=True, slots=True)
class Stir:
    """A mood as something has just left it.

    Attributes:
        at: wall clock, ms.
        feeling: from then on, until it dies away.
    """

    at: int
    feeling: Feeling


class Mood:
    """What has stirred one NPC and has not died away yet. Times are wall clock in ms; one that runs
    backwards is taken to stand still.

    Attributes:
        temper: how it behaves.
        history: the latest stirs, oldest first, to be looked at.
    """

    def __init__(self, temper: Temper | None = None) -> None:
        self.temper = temper or Temper()
        self._levels: dict[str, float] = {}
        self._at = 0  # when they were so high
        self.history: deque[Stir] = deque(maxlen=_HISTORY)

    def stir(self, mood: str, strength: float, now: int) -> None:
        """Something moves it.

        Args:
            mood: one of `MOODS`.
            strength: from 0 to 1. Twice the same adds up as chances do, so it never passes 1.
        """
        self._levels = {name: level for name, level in self.levels(now).items() if level > _GONE}
        self._at = max(self._at, now)
        missing = 1 - self._levels.get(mood, 0.0)
        self._levels[mood] = 1 - missing * (1 - strength)
        self.history.append(Stir(now, self.at(now)))

    def levels(self, now: int) -> dict[str, float]:
        """How strong each mood is."""
        halves = max(0, now - self._at) / (1000 * self.temper.half_life_s)
        return {name: level * 0.5**halves for name, level in self._levels.items()}

    def at(self, now: int) -> Feeling:
        """The strongest mood, or the resting one."""
        levels = self.levels(now)
        strongest = max(levels, key=lambda name: (levels[name], -MOODS.index(name)), default="")
        if strongest and levels[strongest] >= FAINT:
            return Feeling(strongest, levels[strongest])
        resting = self.temper.resting
        return Feeling(resting, levels.get(resting, 0.0))

    def copy(self) -> "Mood":
        """One that can be stirred to see what would be."""
        copy = Mood(self.temper)
        copy._levels, copy._at = dict(self._levels), self._at
        return copy

    def snapshot(self) -> tuple[dict[str, float], int]:
        """The levels, and when they were so high."""
        return dict(self._levels), self._at

    def restore(self, levels: Mapping[str, float], at: int) -> None:
        """Go on from a snapshot; moods that no longer exist are gone."""
        known = {name: level for name, level in levels.items() if name in MOODS}
        self._levels = {name: min(max(level, 0.0), 1.0) for name, level in known.items()}
        self._at = at


def read_temper(section: Section) -> Temper:
    """The `mood:` of an NPC file.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    inner = section.section("mood")
    if inner is None:
        return Temper()
    temper = Temper(
        resting=inner.choice("resting", MOODS, default=MOODS[0]),
        half_life_s=inner.number("half_life_s", 1, _LONGEST_S, default=_HALF_LIFE_S),
    )
    inner.finish()
    return temper
