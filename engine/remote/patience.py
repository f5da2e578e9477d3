"""How long a server may take for a reply: each step of it, and all of it."""

from engine.remote.config import RemoteConfig

#: How long the bill of a reply that is whole is waited for, and whatever else is behind it.
_BILL_S = 1.0


class Patience:
    """The time by which the next piece of one reply must be there; in seconds, of any clock.

    Attributes:
        due: that time.
    """

    def __init__(self, config: RemoteConfig, max_tokens: int, now: float) -> None:
        self.due = now + config.first_token_s
        self._next_s = config.next_token_s
        self._all_s = max_tokens * config.mean_token_s
        self._last: float | None = None  # when all words must be there, once there are some
        self._finished = False

    def spoke(self, now: float) -> None:
        """There were words."""
        if self._last is None:
            self._last = now + self._all_s
        if not self._finished:
            self.due = min(now + self._next_s, self._last)

    def finished(self, now: float) -> None:
        """The reply has its end. What comes behind it makes nobody wait. Idempotent."""
        if not self._finished:
            self._finished = True
            self.due = min(self.due, now + _BILL_S)
