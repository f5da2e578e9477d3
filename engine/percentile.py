"""The one definition of a percentile, by nearest rank: it is always one of the values."""

from collections.abc import Iterable


def percentile(values: Iterable[float], percent: int) -> float:
    """The smallest of `values` that `percent` % of them (0 to 100) do not exceed; of few values the
    99th is the largest.

    Raises:
        ValueError: there are none.
    """
    ranked = sorted(values)
    if not ranked:
        raise ValueError("no values have no percentile")
    # In integers: 7 % of 100 values are 7, not a hair more and so 8.
    rank = -(-len(ranked) * percent // 100)
    return ranked[max(rank, 1) - 1]
