"""The servers of one model: which of them can be asked, and how soon again those that cannot."""

import logging
import math
from collections.abc import Sequence

from engine.errors import RemoteUnavailable
from engine.remote.client import Trouble
from engine.remote.config import RemoteConfig

_log = logging.getLogger("troupe.engine.remote")


class Server:
    """One address.

    Attributes:
        base: see `engine.remote.client.base_of`.
        asked: requests under way.
        resting_until: it is asked nothing before, in seconds.
        failures: in a row.
        down: whether it has failed so often that only its own answer brings it back.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self.asked = 0
        self.resting_until = float("-inf")
        self.failures = 0
        self.down = False


class Servers:
    """Chooses whom to ask: among those that can be asked the one with least to do, in turn."""

    def __init__(self, bases: Sequence[str], config: RemoteConfig) -> None:
        self.all = [Server(base) for base in bases]
        self._config = config
        self._next = 0

    def choose(self, now: float) -> Server | None:
        """Whom to ask at time `now`; None if nobody can be."""
        order = self.all[self._next :] + self.all[: self._next]
        able = [each for each in order if not each.down and each.resting_until <= now]
        if not able:
            return None
        chosen = min(able, key=lambda server: server.asked)
        self._next = (self.all.index(chosen) + 1) % len(self.all)
        return chosen

    def next_at(self) -> float:
        """When somebody can be asked again; infinite while all are down."""
        return min((s.resting_until for s in self.all if not s.down), default=float("inf"))

    def unavailable(self, now: float) -> RemoteUnavailable:
        """What to tell those who would have to wait too long."""
        wait_s = min(self.next_at() - now, self._config.backoff_most_s)
        return RemoteUnavailable("none answers", math.ceil(max(wait_s, 1.0) * 1000))

    def answered(self, server: Server) -> None:
        """A server has done what it should."""
        server.failures = 0

    def troubled(self, server: Server, trouble: Trouble, now: float) -> bool:
        """Take note of what went wrong with a server; whether it is down from now on."""
        config = self._config
        if trouble.kind == "busy":
            asked_for = trouble.retry_s if trouble.retry_s is not None else config.backoff_s
            rest_s = min(asked_for, config.retry_after_most_s)
            server.resting_until = max(server.resting_until, now + rest_s)
        if not trouble.blame:
            return False
        server.failures += 1
        server.resting_until = max(server.resting_until, now + self.backoff(server))
        if server.failures < config.failures or server.down:
            return False
        server.down = True
        _log.warning("%s is left alone until it answers: %s", server.base, trouble.brief)
        return True

    def backoff(self, server: Server) -> float:
        """Seconds to wait after so many failures; each wait is twice the one before."""
        doubled = min(server.failures - 1, 16)
        return float(min(self._config.backoff_s * 2**doubled, self._config.backoff_most_s))

    def back(self, server: Server) -> None:
        """A server that was down answers."""
        server.down, server.failures, server.resting_until = False, 0, float("-inf")
        _log.warning("%s answers again", server.base)
