"""From samples to what a page says of them: figures, promises and whether they are kept, tables."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.measuring import Sample

#: Samples in which others took more cores than this are used only where there is no better one.
CALM_CORES = 0.15


@dataclass(frozen=True, slots=True)
class Target:
    """One promise.

    Attributes:
        label: what is promised.
        column, profile, measure, figure: where it is found.
        kind: whether the bound is the least or the most.
        bound: the figure that is promised.
        compared: whether rivals have such a figure.
        scale: what a figure is multiplied with to be in the label's unit.
        over: the measure whose median of the same figure it is divided by, if it is a ratio.
        of_rival: whether the bound is so many times the rival's median.
    """

    label: str
    column: str
    profile: str
    measure: str
    figure: str
    kind: Literal["least", "most"]
    bound: float
    compared: bool = True
    scale: float = 1.0
    over: str = ""
    of_rival: bool = False

    def reached(self, value: float, rival: float = 1.0) -> bool:
        """Whether a figure keeps the promise."""
        bound = self.bound * rival if self.of_rival else self.bound
        return value >= bound if self.kind == "least" else value <= bound

    def best(self, values: Iterable[float]) -> float:
        """The best of several figures."""
        return max(values) if self.kind == "least" else min(values)

    def times_better(self, value: float, rival: float) -> float:
        """How many times better than a rival's figure; below 1 is worse."""
        return value / rival if self.kind == "least" else rival / value

    def __str__(self) -> str:
        sign = "≥" if self.kind == "least" else "≤"
        return f"{sign} {number(self.bound)}{'× vLLM' if self.of_rival else ''}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of several samples: their median, smallest and largest.

    Attributes:
        disturbed: whether others computed meanwhile (then there is one sample).
    """

    median: float
    least: float
    most: float
    count: int
    disturbed: bool

    def times(self, factor: float) -> "Figure":
        """The same in another unit."""
        least, most = self.least * factor, self.most * factor
        return Figure(self.median * factor, least, most, self.count, self.disturbed)

    def __str__(self) -> str:
        if self.count == 1:
            return f"{number(self.median)} (1 run{', disturbed' if self.disturbed else ''})"
        least, most = number(self.least), number(self.most)
        return least if least == most else f"{number(self.median)} ({least}–{most})"


class Results:
    """Samples by column, profile and measure.

    Args:
        first: columns that stand before the others, in this order.
    """

    def __init__(self, samples: Iterable[Sample], first: Sequence[str] = ()) -> None:
        self._samples: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
        self._first = first
        for sample in samples:
            self._samples[sample.column, sample.profile, sample.measure].append(sample)

    def columns(self, profile: str, measure: str) -> list[str]:
        """Columns that have a measure."""
        found = [c for c, p, m in self._samples if (p, m) == (profile, measure)]
        first = self._first
        return sorted(found, key=lambda c: first.index(c) if c in first else len(first))

    def measures(self) -> list[str]:
        """All measures, in the order in which they came."""
        return list(dict.fromkeys(measure for _, _, measure in self._samples))

    def chosen(self, column: str, profile: str, measure: str) -> list[Sample]:
        """The samples that count: undisturbed ones, or the least disturbed if there are none."""
        samples = self._samples.get((column, profile, measure), [])
        samples = sorted(samples, key=lambda sample: sample.disturbance)
        return [sample for sample in samples if sample.disturbance < CALM_CORES] or samples[:1]

    def figure(self, column: str, profile: str, measure: str, name: str) -> Figure | None:
        """One figure of what was measured, or None if it was not."""
        samples = self.chosen(column, profile, measure)
        values = [sample.figures[name] for sample in samples if name in sample.figures]
        if not values:
            return None
        disturbed = samples[0].disturbance >= CALM_CORES
        return Figure(statistics.median(values), min(values), max(values), len(values), disturbed)

    def all_chosen(self) -> list[Sample]:
        """Every sample that counts."""
        return [sample for key in self._samples for sample in self.chosen(*key)]


def number(value: float) -> str:
    """Three digits, or all of a whole number."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
