"""A store that ends with the process: the default, and the meaning of what the others do."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gameserver.stores.store import (
    Append,
    Changed,
    Drop,
    Elsewhere,
    Erase,
    Holding,
    Keep,
    Put,
    Trim,
    Unit,
    Write,
)


@dataclass(slots=True)
class _Bucket:
    epoch: int = 0
    values: dict[str, bytes] = field(default_factory=dict)
    log: dict[int, bytes] = field(default_factory=dict)
    ends: float | None = None  # monotonic


class MemoryStore:
    """See `gameserver.stores.store.Store`. Nothing here waits."""

    survives = False
    shared = False

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}
        self._swept = time.monotonic()
        self._erased = 0  # the highest epoch of what is erased

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def claim(
        self, bucket: str, *, lease: bool, expected: tuple[str, bytes] | None = None
    ) -> Holding | Elsewhere:
        """See `Store`."""
        if expected is not None and await self.peek(bucket, expected[0]) != expected[1]:
            raise Changed
        page = self._page(bucket)
        page.epoch = max(page.epoch + 1, self._erased + 1, time.time_ns() // 1_000_000)
        return Holding(page.epoch, dict(page.values), tuple(page.log.items()))

    async def peek(self, bucket: str, key: str) -> bytes | None:
        """See `Store`."""
        self._sweep()
        page = self._buckets.get(bucket)
        return None if page is None else page.values.get(key)

    async def keys(self, bucket: str) -> Sequence[str]:
        """See `Store`."""
        page = self._buckets.get(bucket)
        return [] if page is None else list(page.values)

    async def commit(self, units: Sequence[Unit]) -> frozenset[str]:
        """See `Store`."""
        lost: set[str] = set()
        for unit in units:
            gone = {n for n, ep in unit.epochs.items() if n in lost or self._page(n).epoch > ep}
            if gone <= unit.loose:
                lost |= gone
                for name, write in unit.writes:
                    if name not in gone:
                        self.apply(name, unit.epochs[name], write)
            else:
                lost.update(unit.epochs)
        return frozenset(lost)

    async def buckets(self, prefix: str) -> Sequence[str]:
        """See `Store`."""
        return [n for n, page in self._buckets.items() if n.startswith(prefix) and page.values]

    async def scrub(self) -> None:
        """See `Store`. Memory is overwritten soon."""

    def apply(self, bucket: str, epoch: int, write: Write) -> None:
        """One write of the owner, at once."""
        page = self._page(bucket)
        page.epoch = epoch
        match write:
            case Put(key, value):
                page.values[key] = value
            case Drop(key):
                page.values.pop(key, None)
            case Append(s, value):
                if s > next(reversed(page.log), 0):
                    page.log[s] = value
            case Trim(upto):
                while page.log and (oldest := next(iter(page.log))) <= upto:
                    del page.log[oldest]
            case Keep(seconds):
                page.ends = time.monotonic() + seconds
            case Erase():
                self._erased = max(self._erased, epoch)
                del self._buckets[bucket]

    def _page(self, bucket: str) -> _Bucket:
        self._sweep()
        return self._buckets.setdefault(bucket, _Bucket())

    def _sweep(self) -> None:
        """Forget what was to be kept until now. Looked at once a second at most."""
        now = time.monotonic()
        if now - self._swept < 1.0:
            return
        self._swept = now
        for name in [n for n, page in self._buckets.items() if page.ends and page.ends < now]:
            del self._buckets[name]
