"""What a node leaves behind that goes for good: scenes that have something to tell outside, and in
which nobody is who would have them opened elsewhere."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection

from gameserver.protocol import Refusal
from gameserver.stores.store import StoreDown


class Heir:
    """Opens such scenes when a node has gone. All that live try it; each scene goes to one."""

    def __init__(self, inherit: Callable[[], Awaitable[None]], lease_s: float) -> None:
        """
        Args:
            inherit: opens the scenes that no node has. May raise `StoreDown` or `Refusal`.
            lease_s: how long scenes are held at most by who has gone.
        """
        self._inherit = inherit
        self._lease_s = lease_s
        self._living: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def see(self, living: Collection[str]) -> None:
        """These nodes live."""
        gone, self._living = self._living.difference(living), frozenset(living)
        if gone:
            self.stop()  # it begins anew
            self._task = asyncio.get_running_loop().create_task(self._look())

    def stop(self) -> None:
        """Open no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look(self) -> None:
        # A scene that was opened right after its node was last seen is held a little longer.
        for wait_s in (0.0, self._lease_s):
            await asyncio.sleep(wait_s)
            with contextlib.suppress(StoreDown, Refusal):  # then whoever comes has them opened
                await self._inherit()
