"""A mood stays within its bounds, dies away, and does not depend on the order of what happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc.mood import FAINT, Feeling, Mood, Temper
from scenes.reactions import MOODS

NAMES = st.sampled_from(MOODS)
STRENGTHS = st.floats(0.01, 1)
STIRS = st.lists(st.tuples(NAMES, STRENGTHS, st.integers(0, 10**10)), max_size=20)
LATER = st.integers(0, 10**9)
TEMPER = Temper("content", 100)


def stirred(stirs: list[tuple[str, float, int]]) -> Mood:
    mood = Mood(TEMPER)
    for stir in stirs:
        mood.stir(*stir)
    return mood


@given(STIRS, LATER)
def test_levels_stay_between_0_and_1_whatever_happens_and_whatever_the_clock_does(
    stirs: list[tuple[str, float, int]], now: int
) -> None:
    mood = stirred(stirs)
    assert all(0 <= level <= 1 for level in mood.levels(now).values())
    assert mood.at(now).name in MOODS


@given(STIRS, LATER, LATER)
def test_without_news_every_level_only_falls(
    stirs: list[tuple[str, float, int]], first: int, second: int
) -> None:
    mood = stirred(stirs)
    sooner, later = mood.levels(min(first, second)), mood.levels(max(first, second))
    assert all(later[name] <= sooner[name] for name in sooner)


@given(STIRS, st.lists(LATER, min_size=2, max_size=6))
def test_a_mood_that_dies_away_is_followed_by_the_resting_one_and_no_other(
    stirs: list[tuple[str, float, int]], times: list[int]
) -> None:
    mood = stirred(stirs)
    shown = [mood.at(now).name for now in sorted(times)]
    changes = [name for at, name in enumerate(shown) if at == 0 or name != shown[at - 1]]
    assert changes in ([changes[0]], [changes[0], TEMPER.resting])


@given(st.permutations([("angry", 0.3), ("sad", 0.5), ("angry", 0.6), ("amused", 0.9)]))
def test_what_happens_at_once_may_come_in_any_order(order: list[tuple[str, float]]) -> None:
    mood = stirred([(name, strength, 1000) for name, strength in order])
    levels = mood.levels(5000)
    assert levels["angry"] == pytest.approx((1 - 0.7 * 0.4) * 0.5**0.04)
    assert levels["sad"] == pytest.approx(0.5 * 0.5**0.04)
    assert mood.at(5000).name == "amused"


def test_half_is_left_after_the_half_life() -> None:
    mood = stirred([("afraid", 0.8, 0)])
    assert mood.at(0) == Feeling("afraid", 0.8)
    assert mood.at(100_000) == Feeling("afraid", pytest.approx(0.4))
    assert mood.at(400_000) == Feeling("content", 0.0)
    assert mood.levels(300_000)["afraid"] == pytest.approx(FAINT)


def test_what_stirred_it_can_be_looked_at() -> None:
    mood = stirred([("sad", 0.3, at) for at in range(100)])
    assert len(mood.history) == 64
    assert mood.history[-1].at == 99
    assert mood.history[-1].feeling == mood.at(99)


def test_a_copy_is_stirred_alone_and_a_snapshot_brings_back_what_was() -> None:
    mood = stirred([("afraid", 0.8, 0)])
    mood.copy().stir("angry", 1, 0)
    assert mood.at(0).name == "afraid"
    again = Mood(TEMPER)
    again.restore(*mood.snapshot())
    assert again.levels(777) == mood.levels(777)
    again.restore({"afraid": 7.0, "gone": 1.0, "sad": -1.0}, 0)
    assert again.levels(0) == {"afraid": 1.0, "sad": 0.0}
