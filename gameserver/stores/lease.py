"""Holding on to what this node has claimed in a shared store, and knowing when to be silent.

A lease that is not renewed ends, and then anybody may claim the bucket. So this node must have
stopped speaking by then, whatever became of its letters to the store: its deadline is counted from
the moment before the last renewal that succeeded was asked for, and is shorter than the lease.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import structlog

from gameserver.stores.journal import Journal
from gameserver.stores.store import Elsewhere, SharedStore, StoreDown, StoreError
from gameserver.tally import Tally

#: Renewals a lease, and how much of a lease is given up for clocks that run at different speeds and
#: for words that are under way.
_RENEWALS = 3
_MARGIN = 1 / 6
#: So many times sooner than usual a renewal is tried again that failed.
_HASTE = 8

_log = structlog.get_logger("troupe.store")


class Leases:
    """The buckets that this node holds in a shared store.

    Attributes:
        held: their epochs.
    """

    def __init__(self, store: SharedStore, journal: Journal, lease_s: float, tally: Tally) -> None:
        self.held: dict[str, int] = {}
        #: What the others are told of this node.
        self.card: Callable[[], bytes] = lambda: b""
        #: Told what all nodes that live say of themselves.
        self.on_cards: Callable[[Mapping[str, bytes]], None] = lambda cards: None
        #: Told when this node must be silent: what is being said is to end.
        self.on_late: Callable[[], None] = lambda: None
        self._store = store
        self._journal = journal
        self._lease_s = lease_s
        self._tally = tally
        self._task: asyncio.Task[None] | None = None
        self._alarm = asyncio.get_running_loop().call_later(lease_s, lambda: None)

    async def start(self) -> None:
        """Announce this node, and hold on from now on. Raises `StoreError`."""
        try:
            await self._renew()
        except StoreDown as error:
            raise StoreError(str(error)) from error
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def announce(self) -> None:
        """Renew now, because this node has something to say of itself."""
        if self._task is not None:
            with contextlib.suppress(StoreDown):
                await self._renew()

    async def stop(self) -> None:
        """Let everything go, so that others may have it at once. Idempotent."""
        self._alarm.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            with contextlib.suppress(StoreDown):  # then it ends by itself
                await self._store.release(self.held)
            self.held.clear()

    async def holder(self, bucket: str) -> Elsewhere | None:
        """The other node that holds a bucket, if one does. Raises `StoreDown`."""
        if bucket in self.held:
            return None
        return await self._store.holder(bucket)

    async def _run(self) -> None:
        wait = period = self._lease_s / _RENEWALS
        while True:
            await asyncio.sleep(wait)
            try:
                await self._renew()
                wait = period
            except StoreDown:
                self._tally.count("lease_failures")
                wait = period / _HASTE
            except Exception:  # leases that nobody renews end all talk here, one mistake need not
                self._tally.count("lease_failures")
                _log.exception("leases were not renewed; it is tried again")
                wait = period / _HASTE

    async def _renew(self) -> None:
        asked = time.monotonic()
        held = dict(self.held)
        renewal = await self._store.renew(held, self.card())
        for bucket in renewal.lost:
            if self.held.get(bucket) == held[bucket]:  # or it was claimed anew meanwhile
                del self.held[bucket]
        if renewal.lost:
            self._journal.give_up({bucket: held[bucket] for bucket in renewal.lost})
        self.on_cards(renewal.cards)
        deadline = asked + self._lease_s * (1 - _MARGIN)
        self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(max(deadline - time.monotonic(), 0), self._fall_silent)
        # Only now may anybody be told more: what is not ours any more is known.
        self._journal.renewed(deadline)

    def _fall_silent(self) -> None:
        _log.warning("the store does not answer; scenes stand still")
        self._tally.count("lease_deadlines_passed")
        self.on_late()
