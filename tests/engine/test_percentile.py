"""A percentile is a value of which as many are no larger as its name says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.percentile import percentile

values = st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=300)


@given(values, st.integers(0, 100))
def test_it_is_the_smallest_value_that_so_many_do_not_exceed(
    numbers: list[float], percent: int
) -> None:
    found = percentile(numbers, percent)
    assert found in numbers
    assert 100 * sum(number <= found for number in numbers) >= percent * len(numbers)
    below = [number for number in numbers if number < found]
    assert not below or 100 * len(below) < percent * len(numbers)


def test_the_ends_and_the_middle() -> None:
    hundred = range(1, 101)
    assert [percentile(hundred, percent) for percent in (0, 7, 50, 99, 100)] == [1, 7, 50, 99, 100]
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(range(16), 99) == 15


def test_nothing_has_none() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
