"""Lets clients identify themselves at a bounded rate: who comes back before who comes anew.

After a node or a network has failed everybody comes at once, and each `identify` costs signatures,
hashes and reads from the store. Those with a session to go on with are served first: their scenes
wait for them, and somebody who begins anew can be a little later.
"""

import asyncio
import random
from collections import deque

from gameserver.admission import TokenBucket
from gameserver.protocol import Close, Code, Refusal
from gameserver.settings import Guards
from gameserver.tally import Tally


class Turnstile:
    """See above."""

    def __init__(self, guards: Guards, tally: Tally) -> None:
        self._bucket = TokenBucket(guards.identifies_per_s, guards.identifies_burst)
        self._rate = guards.identifies_per_s
        self._most = guards.identifies_waiting
        self._tally = tally
        self._back: deque[asyncio.Future[None]] = deque()
        self._new: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._back) + len(self._new)

    async def enter(self, *, comes_back: bool) -> None:
        """Wait for one's turn.

        Args:
            comes_back: it has a session to go on with.

        Raises:
            Refusal: `busy`, fatal: too many wait. Of those that begin anew the last ones go first.
        """
        if not len(self) and not self._bucket.take():
            return
        if len(self) >= self._most and not (comes_back and self._new):
            raise self._busy()
        mine = asyncio.get_running_loop().create_future()
        (self._back if comes_back else self._new).append(mine)
        if len(self) > self._most and not (last := self._new.pop()).done():
            last.set_exception(self._busy())
        self._tally.count("identifies_waited")
        self._look()
        await mine

    def _look(self) -> None:
        """Let in who may come in, and look again when the next one may."""
        wait_s = 0.0
        while len(self) and not (wait_s := self._bucket.take()):
            turn = (self._back or self._new).popleft()
            if turn.cancelled():
                continue
            turn.set_result(None)
        if wait_s and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._look()

    def _busy(self) -> Refusal:
        """They come again when those who wait are through, and not all at once."""
        self._tally.count("identifies_refused")
        wait_ms = int(1000 * (len(self) / self._rate + 1) * random.uniform(1.0, 2.0))
        msg = "too many come at once"
        return Refusal(Code.BUSY, msg, retry_ms=wait_ms, close=Close.OVERLOADED)
