"""Counters of the game port, and how long turns took."""

from collections import Counter, deque

from engine.percentile import percentile

_WINDOW = 512  # latest values that percentiles look at


class Tally:
    """Counts things by name and keeps the latest values of some measures."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._values: dict[str, deque[int]] = {}

    def count(self, name: str, amount: int = 1) -> None:
        """Something happened, `amount` times."""
        self._counts[name] += amount

    def sent(self, frames: int, size: int) -> None:
        """Frames were written, of `size` bytes together. As `heard`, it is called for each delta
        and listener."""
        self._counts["frames_out"] += frames
        self._counts["bytes_out"] += size

    def heard(self, chunks: int) -> None:
        """A delta of so many chunks was written to a listener."""
        self._counts["deltas_out"] += 1
        self._counts["chunks_out"] += chunks

    def measure(self, name: str, value: int | None) -> None:
        """One value of a measure; None, for what did not come to pass, is left out."""
        if value is not None:
            self._counts[f"{name}_count"] += 1
            self._counts[f"{name}_sum"] += value
            self._values.setdefault(name, deque(maxlen=_WINDOW)).append(value)

    def gauges(self) -> dict[str, float]:
        """All counts by name; of each measure also count, sum, and median and p99 of the latest."""
        percentiles = {}
        for name, values in self._values.items():
            for percent in (50, 99):
                percentiles[f"{name}_p{percent}"] = percentile(values, percent)
        return {**self._counts, **percentiles}
