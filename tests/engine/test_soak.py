"""Two thousand requests in a row leave no trace; `make soak` runs a hundred thousand."""

import dataclasses

import pytest

from benchmarks.soak import Batch, Result, soak


@pytest.mark.parametrize("policy", ["priority", "fair"])
def test_nothing_grows_and_nothing_gets_lost(policy: str) -> None:
    result = soak(2000, policy, batch=200, blocks=640)
    # Batches are short and other programs run beside them: time has room that `make soak` has not.
    assert not result.broken(slowdown=0.25, growth_mb=2.0)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rss_mb": 103.0}, "memory"),
        ({"objects": 1020}, "objects"),
    ],
)
def test_what_grows_is_seen(change: dict[str, float], word: str) -> None:
    rows = [Batch(n, 100.0, 900, 100.0, 1000) for n in range(10)]
    assert not Result(rows, 101.0, 100.0, []).broken(0.02, 2.0)
    assert "step" in Result(rows, 103.0, 100.0, []).broken(0.02, 2.0)[0]
    assert Result(rows, 100.0, 100.0, ["a block"]).broken(0.02, 2.0) == ["a block"]
    late = [dataclasses.replace(row, **change) for row in rows[5:]]  # type: ignore[arg-type]
    (problem,) = Result(rows[:5] + late, 100.0, 100.0, []).broken(0.02, 2.0)
    assert word in problem
