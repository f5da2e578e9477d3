"""Levels come one by one and with hysteresis, whatever the pressure does. On a simulated clock."""

from hypothesis import given
from hypothesis import strategies as st

from gameserver.overload.ladder import Ladder, Level
from gameserver.overload.settings import OverloadSettings

SETTINGS = OverloadSettings()
TICK_S = 0.25
pressures = st.floats(0, 3, allow_nan=False)


def climb(ladder: Ladder, pressure: float, seconds: float, now: float = 0.0) -> list[float]:
    """When the level changed, under a pressure that does not change."""
    changes = []
    for tick in range(round(seconds / TICK_S)):
        at = now + tick * TICK_S
        if ladder.feel(pressure, at):
            changes.append(at)
    return changes


@given(st.lists(pressures, max_size=400))
def test_one_level_at_a_time_and_never_faster_than_the_settings_say(run: list[float]) -> None:
    ladder, before, changed_at = Ladder(SETTINGS), Level.NORMAL, 0.0
    for tick, pressure in enumerate(run):
        now = tick * TICK_S
        changed = ladder.feel(pressure, now)
        assert changed == (ladder.level != before)
        if changed:
            assert abs(ladder.level - before) == 1
            up = ladder.level > before
            assert now - changed_at >= (SETTINGS.up_s if up else SETTINGS.down_s)
            assert pressure >= SETTINGS.enter if up else pressure <= SETTINGS.leave
            before, changed_at = ladder.level, now


@given(st.lists(pressures, max_size=200), st.lists(st.floats(0.26, 0.74), max_size=200))
def test_between_the_two_thresholds_nothing_changes(run: list[float], calm: list[float]) -> None:
    ladder = Ladder(SETTINGS)
    for tick, pressure in enumerate(run):
        ladder.feel(pressure, tick * TICK_S)
    level = ladder.level
    for tick, pressure in enumerate(calm, len(run)):
        assert not ladder.feel(pressure, tick * TICK_S)
    assert ladder.level == level


@given(st.lists(pressures, max_size=200))
def test_from_wherever_it_stands_lasting_pressure_ends_at_the_top_and_calm_at_the_bottom(
    run: list[float],
) -> None:
    ladder = Ladder(SETTINGS)
    for tick, pressure in enumerate(run):
        ladder.feel(pressure, tick * TICK_S)
    now = len(run) * TICK_S
    climb(ladder, 1.0, 5 * SETTINGS.up_s + 1, now)
    assert ladder.level == Level.REFUSE
    climb(ladder, 0.0, 5 * 8 * SETTINGS.down_s + 1, now + 60)
    assert ladder.level == Level.NORMAL


def test_a_short_burst_changes_nothing() -> None:
    ladder = Ladder(SETTINGS)
    for second in range(20):
        assert not ladder.feel(2.0, float(second))
        assert not ladder.feel(0.0, second + 0.5)


def test_a_level_that_was_left_too_early_is_kept_longer_the_next_time() -> None:
    ladder, now, stays = Ladder(SETTINGS), 0.0, []
    for _ in range(5):
        now = climb(ladder, 1.0, SETTINGS.up_s + 1, now)[0] + TICK_S
        left = climb(ladder, 0.0, 9 * SETTINGS.down_s, now)[0]
        stays.append(left - now)
        now = left + TICK_S
    assert stays == sorted(stays)
    assert stays[0] == SETTINGS.down_s
    assert stays[-1] == 8 * SETTINGS.down_s
