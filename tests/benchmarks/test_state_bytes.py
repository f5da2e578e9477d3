"""What has changed takes far fewer bytes than the whole state."""

import pytest

from benchmarks.state_bytes import FRAMINGS, measure
from benchmarks.tavern_evening import evening


@pytest.mark.parametrize("guests", [2, 12])
def test_deltas_save_three_fifths_of_an_evening_in_the_tavern(guests: int) -> None:
    bill = measure(guests, 30)
    assert bill.frames > 100
    for framing in FRAMINGS:
        assert bill.deltas[framing] <= 0.4 * bill.whole[framing]
        assert bill.deltas[framing] <= 0.4 * bill.bare[framing]


def test_sight_saves_more_of_it() -> None:
    near, far = measure(12, 30, sight=4.0), measure(12, 30)
    assert near.deltas["JSON"] < far.deltas["JSON"]


def test_an_evening_is_the_same_each_time() -> None:
    assert list(evening(3, 5, seed=1)) == list(evening(3, 5, seed=1))
    assert list(evening(3, 5, seed=1)) != list(evening(3, 5, seed=2))
