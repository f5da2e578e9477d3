"""Who is to be looked at, and when, so that thousands who only sit there cost no look a second."""

import math
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Rounds(Generic[_T]):
    """An appointment with each of many; a round is short, and takes those whose time has come.

    Nobody is looked at early, nor later than the first round after the time that was asked for.
    """

    def __init__(self, now: float, period_s: float) -> None:
        """`now`, as all times here, is in seconds on a clock that never goes back."""
        self._period = period_s
        self._done = int(now // period_s)  # the last round
        self._rounds: dict[int, set[_T]] = {}
        self._appointments: dict[_T, int] = {}

    def __len__(self) -> int:
        return len(self._appointments)

    def look(self, who: _T, at: float) -> None:
        """Look at somebody then, and not when it was to be before."""
        self.forget(who)
        number = max(math.ceil(at / self._period), self._done + 1)
        self._rounds.setdefault(number, set()).add(who)
        self._appointments[who] = number

    def forget(self, who: _T) -> None:
        """Look at somebody no more. Idempotent."""
        number = self._appointments.pop(who, None)
        if number is not None:
            meeting = self._rounds[number]
            meeting.discard(who)
            if not meeting:
                del self._rounds[number]

    def due(self, now: float) -> list[_T]:
        """Those whose time has come. They have no appointment any more."""
        current = int(now // self._period)
        due: list[_T] = []
        for number in range(self._done + 1, current + 1):
            due += self._rounds.pop(number, ())
        self._done = max(self._done, current)
        for who in due:
            del self._appointments[who]
        return due
