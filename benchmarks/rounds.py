"""The rounds of a run on a GPU: what is asked in each, and where its samples go.

The same for Troupe and for rivals, so nothing of the engine is imported here.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import Column, Figures
from gameserver.bench.workload import PROFILES, Line, build

#: How much of a line's prompt was seen before: nothing, all of it, or scene and persona.
CACHES = ("cold", "warm", "lines")
#: Replies that run together when steps of speech are timed, and how many steps.
BATCHES, STEPS = (1, 64, 256), 128
_FAR = 1000  # between the seeds of two rounds


@dataclass(frozen=True, slots=True)
class Round:
    """Lines that are asked one cache after another.

    Attributes:
        number: 0 is a rehearsal, which is not reported.
        lines: by cache, in order; scenes of the cold ones occur in no other round.
        distinct: prompt tokens of the cold ones that are computed if none is computed twice.
    """

    number: int
    lines: dict[str, list[Line]]
    distinct: int


def rounds(profile: str, seed: int, repetitions: int, until: str = CACHES[-1]) -> Iterator[Round]:
    """A rehearsal, and then as many rounds as there are repetitions.

    Args:
        until: the last cache of each.
    """
    wanted = CACHES[: CACHES.index(until) + 1]
    for number in range(repetitions + 1):
        own = seed + _FAR * number
        cold = build(profile, own)
        lines = {"cold": cold, "warm": cold, "lines": build(profile, own, turn_seed=own + 7)}
        yield Round(number, {name: lines[name] for name in wanted}, distinct_tokens(profile))


def distinct_tokens(profile: str) -> int:
    """Prompt tokens of a profile, those that lines have in common counted once."""
    size = PROFILES[profile]
    return size.scenes * (size.scene + size.npcs * (size.persona + size.players * size.turn))


def throughput(lines: Sequence[Line], out: int, wall: float) -> Figures:
    """Figures of lines that were asked together, of an engine that tells no more than the end."""
    return {"wall_s": wall, "tok_s": len(lines) * out / wall}


def step_figures(short: float, long: float, replies: int) -> Figures:
    """A step of speech, from the seconds that 1 and 1 + STEPS tokens took; everything was warm."""
    step = (long - short) / STEPS
    return {"step_ms": 1000 * step, "tok_s": replies / step}


class Recorder:
    """Prints samples as lines of JSON as they come, and appends them to a file."""

    def __init__(self, path: Path | None, column: Column) -> None:
        self._path, self.column = path, column

    def add(self, measure: str, figures: Figures, profile: str | None = None) -> None:
        """Write one sample down; `profile` if it is not the column's."""
        column = self.column
        if profile is not None:
            column = Column(column.name, profile, column.seed, column.software)
        line = column.record(measure, figures).line()
        print(line, flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Say how long a part took."""
        started = time.monotonic()
        yield
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
