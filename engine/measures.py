"""How long things took and how large they were, as histograms that cost little to keep."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.outputs import Usage

#: Seconds. From a cached prompt on a GPU to a crowd on two CPU cores.
WAIT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 4.0, 8.0, 16.0, 60.0)
GAP_BOUNDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 3.0)
TOKEN_BOUNDS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
#: Predicted ÷ actual: what a forecast is worth.
RATIO_BOUNDS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
RATE_BOUNDS = (1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 250, 500)
#: Classes beyond share one series, so that their number does not depend on what clients ask for.
CLASSES = ("0", "1", "2", "3+")


class Histogram:
    """Counts of values by size. One thread adds, any thread reads.

    Args:
        bounds: largest values of each bucket, ascending; one more is for all that are larger.
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def add_all(self, values: Sequence[float]) -> None:
        """Count many values at once."""
        counts = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
        self._counts = [old + new for old, new in zip(self._counts, counts.tolist(), strict=True)]
        self._total += sum(values)

    def read(self) -> "Buckets":
        """The counts now. One that is added meanwhile may be missing from the total."""
        return Buckets(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram at one time.

    Attributes:
        bounds: largest values of all buckets but the last, which has no bound.
        counts: values in each bucket, one more than there are bounds.
        total: sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Series:
    """One histogram with its name.

    Attributes:
        name: what is measured, with its unit at the end.
        group: which class of requests, one of `CLASSES`; None for all of them.
    """

    name: str
    help: str
    group: str | None
    buckets: Buckets


class Measures:
    """The histograms of one engine. Written by the engine's thread, once a token or a request."""

    def __init__(self) -> None:
        self._first_token = {group: Histogram(WAIT_BOUNDS) for group in CLASSES}
        self._queue_wait = {group: Histogram(WAIT_BOUNDS) for group in CLASSES}
        self._forecast = {group: Histogram(RATIO_BOUNDS) for group in CLASSES}
        self._gap = Histogram(GAP_BOUNDS)
        self._prompt = Histogram(TOKEN_BOUNDS)
        self._generated = Histogram(TOKEN_BOUNDS)
        self._pace = Histogram(RATE_BOUNDS)

    def first_token(self, seconds: float, priority: int, expected_s: float | None = None) -> None:
        """A request has its first token, `seconds` after it arrived; so many were predicted."""
        self._first_token[_group(priority)].add(seconds)
        if expected_s is not None and seconds > 0:
            self._forecast[_group(priority)].add(expected_s / seconds)

    def next_tokens(self, seconds: Sequence[float]) -> None:
        """Requests have another token each, so many `seconds` after the one before."""
        self._gap.add_all(seconds)

    def finished(self, usage: Usage, priority: int) -> None:
        """A request has ended. One that never had a slot tells nothing."""
        if usage.scheduled is None:
            return
        self._queue_wait[_group(priority)].add(usage.scheduled - usage.arrived)
        self._prompt.add(usage.prompt_tokens)
        self._generated.add(usage.completion_tokens)
        if usage.first_token is not None and usage.finished > usage.first_token:
            gaps = usage.completion_tokens - 1
            if gaps > 0:
                self._pace.add(gaps / (usage.finished - usage.first_token))

    def read(self) -> list[Series]:
        """All histograms. May be called from any thread."""
        by_class = (
            ("first_token_seconds", "from arrival to the first token", self._first_token),
            ("queue_wait_seconds", "from arrival to a slot", self._queue_wait),
            ("first_token_forecast_ratio", "predicted ÷ actual time to it", self._forecast),
        )
        of_all = (
            ("token_gap_seconds", "between one token of a reply and the next", self._gap),
            ("request_prompt_tokens", "prompt tokens of finished requests", self._prompt),
            ("request_generated_tokens", "generated by finished requests", self._generated),
            ("request_tokens_per_second", "pace of finished replies", self._pace),
        )
        return [
            Series(name, text, group, histogram.read())
            for name, text, histograms in by_class
            for group, histogram in histograms.items()
        ] + [Series(name, text, None, histogram.read()) for name, text, histogram in of_all]


def _group(priority: int) -> str:
    return CLASSES[min(priority, len(CLASSES) - 1)]
