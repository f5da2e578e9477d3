"""A beat on demand: at once after a pause, and then at a pace."""

import asyncio
from collections.abc import Callable


class Pulse:
    """Calls `beat` once for whatever was asked for meanwhile, and never faster than its pace."""

    def __init__(self, pace_s: float, beat: Callable[[], None]) -> None:
        self._pace_s = pace_s
        self._beat = beat
        self._last = float("-inf")  # loop time
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, after_s: float = 0.0) -> None:
        """Let there be a beat, not before so many seconds from now."""
        loop = asyncio.get_running_loop()
        when = max(loop.time() + after_s, self._last + self._pace_s)
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._fire)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._last = asyncio.get_running_loop().time()
        self._beat()
