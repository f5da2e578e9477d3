"""How late the event loop runs its timers: what a player feels when something hogs the process."""

import asyncio
from collections import deque

from engine.percentile import percentile


class LoopLag:
    """Sets a timer again and again and notes by how much it was late.

    Args:
        period_s: between two timers.
        window: samples the figures look back on.
    """

    def __init__(self, period_s: float = 0.02, window: int = 3000) -> None:
        self._period = period_s
        self._late_ms: deque[float] = deque(maxlen=window)
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin to measure in the running loop."""
        self._set(asyncio.get_running_loop())

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def gauges(self) -> dict[str, float]:
        """Lateness in ms: median, 99th percentile and worst of the window."""
        late = self._late_ms or [0.0]
        return {
            "loop_lag_ms_p50": percentile(late, 50),
            "loop_lag_ms_p99": percentile(late, 99),
            "loop_lag_ms_max": max(late),
        }

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._period
        self._timer = loop.call_at(self._due, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        # The loop may fire up to its clock's resolution early; that is not lag.
        self._late_ms.append(max(0.0, (loop.time() - self._due) * 1000))
        self._set(loop)
