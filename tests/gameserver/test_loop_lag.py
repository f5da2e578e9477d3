"""Lag of the event loop is measured, not assumed."""

import asyncio
import time

from gameserver.loop_lag import LoopLag


async def test_a_blocked_loop_shows_and_a_free_one_does_not() -> None:
    lag = LoopLag(period_s=0.001)
    lag.start()
    await asyncio.sleep(0.05)
    time.sleep(0.06)  # noqa: ASYNC251 - blocking the loop is the point
    await asyncio.sleep(0.05)
    lag.stop()
    figures = lag.gauges()
    assert figures["loop_lag_ms_max"] >= 50
    assert figures["loop_lag_ms_p50"] < 30
    assert figures["loop_lag_ms_p50"] <= figures["loop_lag_ms_p99"] <= figures["loop_lag_ms_max"]


def test_without_samples_it_is_zero() -> None:
    assert set(LoopLag().gauges().values()) == {0.0}
