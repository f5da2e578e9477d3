"""Stamps rise, stay close to the wall clock, and are never taken from far in the future."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gameserver.state.clock import EPOCH_MS, MOST, FromTheFuture, HybridClock, stamp_of

NOW = EPOCH_MS + 217_000_000_000
DRIFT_MS = 1000

#: What happens to a clock: it makes a stamp, time passes or is set back, a stamp comes from a
#: clock that is ahead or behind by some ms.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.just(0)),
        st.tuples(st.just("wall"), st.integers(-10_000, 10_000)),
        st.tuples(st.just("see"), st.integers(-5_000, 5_000)),
    ),
    max_size=60,
)


class Wall:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.ms = NOW

    def __call__(self) -> int:
        return self.ms


@given(STEPS)
def test_each_stamp_is_above_all_that_were_made_or_seen(steps: list[tuple[str, int]]) -> None:
    wall = Wall()
    clock = HybridClock(wall, DRIFT_MS)
    highest = 0
    for what, by in steps:
        if what == "wall":
            wall.ms += by
        elif what == "tick":
            stamp = clock.tick()
            assert highest < stamp <= MOST
            assert stamp >= stamp_of(wall.ms)
            highest = stamp
        else:
            stamp = stamp_of(wall.ms + by)
            if by > DRIFT_MS:
                with pytest.raises(FromTheFuture):
                    clock.check(stamp)
                continue
            clock.check(stamp)
            clock.see(stamp)
            highest = max(highest, stamp)


@given(STEPS)
def test_stamps_are_ahead_of_the_highest_wall_clock_by_the_drift_at_most(
    steps: list[tuple[str, int]],
) -> None:
    """Whoever sends stamps, however many, cannot lead a clock further away than one could."""
    wall = Wall()
    clock = HybridClock(wall, DRIFT_MS)
    latest = wall.ms
    for what, by in [*steps, ("tick", 0)]:
        if what == "wall":
            wall.ms += by
            latest = max(latest, wall.ms)
        elif what == "see":
            # as far ahead of itself as it would be if it believed itself
            stamp = max(clock.last, stamp_of(wall.ms)) + (max(by, 0) << 12)
            try:
                clock.check(stamp)
            except FromTheFuture:
                continue
            clock.see(stamp)
        else:
            clock.tick()
        assert clock.last <= stamp_of(latest + DRIFT_MS + 1) + len(steps) + 1


def test_a_clock_that_is_set_back_still_rises() -> None:
    wall = Wall()
    clock = HybridClock(wall, DRIFT_MS)
    before = clock.tick()
    wall.ms -= 3_600_000
    after = [clock.tick() for _ in range(10_000)]  # more than the counter holds
    assert after == sorted({*after})
    assert after[0] > before
    wall.ms += 3_600_000 + 10
    assert clock.tick() == stamp_of(wall.ms)


def test_stamps_fit_into_53_bits_until_2089() -> None:
    year_2089 = EPOCH_MS + 2**41 - 1
    assert stamp_of(year_2089) <= MOST
    assert stamp_of(0) == 0


def test_a_stamp_from_the_future_says_what_to_do() -> None:
    clock = HybridClock(Wall(), DRIFT_MS)
    with pytest.raises(FromTheFuture, match=r"5000 ms ahead .* at most 1000 .* set the clock"):
        clock.check(stamp_of(NOW + 5000))
