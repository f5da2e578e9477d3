"""When something was written, so that all who look agree which of two values is the newer one.

A hybrid logical clock: Kulkarni, Demirbas, Madappa, Avva, Leone, "Logical Physical Clocks", OPODIS
2014. A stamp is close to the wall clock, and above every stamp that was seen before it was made.
Here it is one integer below 2^53, which every JSON reader holds exactly: 41 bits of milliseconds,
12 bits of counter. A full counter carries into the milliseconds, which are then ahead a little.
"""

from collections.abc import Callable

#: 2020-01-01 UTC in ms since 1970; 41 bits last until 2089.
EPOCH_MS = 1_577_836_800_000
COUNTER_BITS = 12
MOST = 2**53 - 1


class FromTheFuture(ValueError):
    """A stamp is further ahead of the wall clock than is believed.

    Attributes:
        ahead_ms, limit_ms: by how much, and how much would do.
    """

    def __init__(self, ahead_ms: int, limit_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self.limit_ms = limit_ms
        super().__init__(
            f"the stamp is {ahead_ms} ms ahead of this server's clock, of which at most {limit_ms} "
            "are taken: set the clock of whoever wrote it"
        )


class HybridClock:
    """Makes stamps.

    Attributes:
        last: the highest stamp that was made or seen.
    """

    def __init__(self, now_ms: Callable[[], int], drift_ms: int) -> None:
        """
        Args:
            now_ms: the wall clock, ms since 1970; it may be set back.
            drift_ms: how far the stamps of others may be ahead of it.
        """
        self.last = 0
        self._now_ms = now_ms
        self._drift_ms = drift_ms

    def tick(self) -> int:
        """A stamp above all others so far."""
        self.last = max(self.last + 1, stamp_of(self._now_ms()))
        return self.last

    def check(self, stamp: int) -> None:
        """Raise `FromTheFuture` if a stamp of somebody else is not to be believed. It is measured
        by the wall clock and not by `last`, or many small steps would lead as far as one likes.
        """
        ahead_ms = (stamp >> COUNTER_BITS) + EPOCH_MS - self._now_ms()
        if ahead_ms > self._drift_ms:
            raise FromTheFuture(ahead_ms, self._drift_ms)

    def see(self, stamp: int) -> None:
        """Be above a stamp from now on: one that was checked, or that this world has kept."""
        self.last = max(self.last, stamp)


def stamp_of(ms: int) -> int:
    """The first stamp of a millisecond since 1970; 0 before 2020."""
    return max(ms - EPOCH_MS, 0) << COUNTER_BITS
