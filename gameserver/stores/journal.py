"""What this node writes to its store: collected as it happens, committed in groups, in order.

Nothing waits for a commit but what must: an event or an answer is sent once it is kept. Who writes
is never held up, and what has no number (text as it is spoken) is sent at once.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from weakref import WeakValueDictionary

import structlog

from gameserver.stores.memory import MemoryStore
from gameserver.stores.store import (
    Append,
    Drop,
    Erase,
    Holding,
    Keep,
    Put,
    Store,
    StoreDown,
    Trim,
    Unit,
    Write,
)
from gameserver.tally import Tally

#: Most units of one commit, so that none takes long.
_GROUP = 512
#: For so long after a commit the store is taken to be well.
_TRUSTED_S = 1.0
#: Waits after a commit that failed: short, because everybody's events wait with it.
_RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.5)

_log = structlog.get_logger("troupe.store")


class Gate:
    """What may be sent already. As it stands, everything.

    Attributes:
        written: number of the newest unit.
        durable: number of the newest unit that is kept.
        deadline: monotonic time from which on this node must not speak: others may own its scenes.
    """

    def __init__(self) -> None:
        self.written = 0
        self.durable = 0
        self.deadline = math.inf
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def when_opened(self, callback: Callable[[], None]) -> None:
        """Call back, once, when more may be sent."""
        self._waiting[callback] = None

    def _open(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for callback in waiting:
            callback()


class Journal(Gate):
    """See above. Begins to commit when it is started.

    Attributes:
        store: where everything goes.
    """

    def __init__(self, store: Store, tally: Tally) -> None:
        super().__init__()
        self.store = store
        #: Told of buckets that are somebody else's by now, before anything of theirs may be sent.
        self.on_lost: Callable[[Mapping[str, int]], None] = lambda buckets: None
        #: Told of each bucket that something was written to, right before that is committed.
        self.on_commit: Callable[[str], None] = lambda bucket: None
        #: Something of ours is written here to see whether the store is well; None: nobody looks.
        self.proof: Book | None = None
        self._tally = tally
        # Memory takes a write as fast as we could put it aside.
        self._memory = store if isinstance(store, MemoryStore) else None
        self._unit: Unit | None = None
        self._pending: deque[Unit] = deque()
        self._flight: Sequence[Unit] = ()  # being committed
        self._touched: set[str] = set()
        self._oldest = math.inf  # monotonic time of the oldest unit that is not kept
        self._kept_at = -math.inf  # monotonic time of the latest commit
        self._deeds = WeakValueDictionary[tuple[str, int], Deed]()
        self._something = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting_s(self) -> float:
        """How long the oldest write has been waiting; 0 if none does."""
        return max(0.0, time.monotonic() - self._oldest)

    def start(self) -> None:
        """Begin to commit."""
        if self._memory is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Commit what there is, for a moment if the store does not answer, and end. Idempotent."""
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.settled(), 2.0)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def renewed(self, deadline: float) -> None:
        """This node may speak until then."""
        self.deadline = deadline
        self._open()

    async def settled(self) -> None:
        """Wait until all that was written so far is kept."""
        goal = self.written
        while self.durable < goal:
            opened = asyncio.Event()
            self.when_opened(opened.set)
            await opened.wait()

    @property
    def doubtful(self) -> bool:
        """Whether it is some time since the store has taken anything: its disk may be full."""
        return self.proof is not None and time.monotonic() - self._kept_at >= _TRUSTED_S

    async def prove(self, wait_s: float) -> None:
        """Before something is accepted: have the store take something if it is `doubtful`. After
        `wait_s` at most, it has, or `waiting_s` tells."""
        if self.proof is None or not self.doubtful:
            return
        if self._oldest == math.inf:
            self.begin()
            self.proof.put("proof", str(time.time_ns()).encode())
            self.begin()
        if (left_s := wait_s - self.waiting_s) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.settled(), left_s)

    def begin(self) -> None:
        """What is written from now on, until this is called again or other things happen, comes to
        be together or not at all."""
        self._unit = None

    def deed(self, bucket: str, epoch: int) -> "Deed":
        """What all books of a bucket in one epoch share."""
        return self._deeds.setdefault((bucket, epoch), Deed(bucket, epoch))

    def write(self, deed: "Deed", write: Write, *, loose: bool) -> None:
        """Take a write in, as one of those that the unit stands or falls with, or else `loose`: see
        `Unit`."""
        if deed.lost or deed.over:
            return
        bucket, epoch = deed.bucket, deed.epoch
        deed.note(write)
        if self._memory is not None:
            self._memory.apply(bucket, epoch, write)
            return
        unit = self._unit
        if unit is None:
            self.written += 1
            unit = self._unit = Unit(self.written)
            self._pending.append(unit)
            self._oldest = min(self._oldest, time.monotonic())
            self._something.set()
        self._touched.add(bucket)
        if not loose:
            unit.loose.discard(bucket)
        elif bucket not in unit.epochs:
            unit.loose.add(bucket)
        unit.epochs[bucket] = epoch
        unit.writes.append((bucket, write))
        if deed.kept_s is not None:
            unit.kept[bucket] = deed.kept_s

    def gauges(self) -> dict[str, float]:
        """How the store keeps up."""
        return {
            "store_units_waiting": len(self._flight) + len(self._pending),
            "store_waiting_s": self.waiting_s,
        }

    def give_up(self, buckets: Mapping[str, int]) -> None:
        """These are somebody else's by now (epochs by bucket): nothing more is written to them."""
        self._unit = None
        lost = dict(buckets)
        kept: deque[Unit] = deque()
        for unit in self._pending:
            gone = {name for name, epoch in unit.epochs.items() if lost.get(name) == epoch}
            if gone <= unit.loose:
                _strip(unit, gone)
                kept.append(unit)
            else:  # who shares a unit with them has lost what it built on
                lost.update(unit.epochs)
        self._pending = kept
        for owner in lost.items():
            if (deed := self._deeds.get(owner)) is not None:
                deed.lost = True
        self._tally.count("store_buckets_lost", len(lost))
        self.on_lost(lost)
        self._advance()

    async def _run(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            while self._pending:
                try:
                    await self._keep_some()
                except Exception:  # whatever it is, what was accepted is not given up for it
                    self._tally.count("store_failures")
                    _log.exception("what happens was not kept; it is tried again")
                    self._pending.extendleft(reversed(self._flight))
                    self._flight = ()
                    await asyncio.sleep(_RETRY_S[-1])

    async def _keep_some(self) -> None:
        """Commit the oldest units together."""
        self._gather()
        self._unit = None  # a unit that is being committed gets no more writes
        count = min(len(self._pending), _GROUP)
        group = self._flight = [self._pending.popleft() for _ in range(count)]
        began = time.monotonic()
        lost = await self._commit(group)
        self._kept_at = time.monotonic()
        self._flight = ()
        self._oldest = began if self._pending else math.inf
        self._tally.count("store_units", len(group))
        self._tally.measure("store_commit_ms", round((time.monotonic() - began) * 1000))
        if lost:
            epochs = {n: ep for unit in group for n, ep in unit.epochs.items()}
            self.give_up({name: epochs[name] for name in lost})
        self._advance()

    def _gather(self) -> None:
        """Let those who keep something as a whole write it down, once a commit."""
        touched, self._touched = self._touched, set()
        for bucket in touched:
            self._unit = None
            self.on_commit(bucket)
        self._touched.clear()

    def _advance(self) -> None:
        """See what is settled: kept, or given up."""
        first = next(iter(self._flight or self._pending), None)
        self.durable = self.written if first is None else first.number - 1
        self._open()

    async def _commit(self, group: Sequence[Unit]) -> frozenset[str]:
        """Until it succeeds: what was accepted is not given up."""
        for wait in _waits():
            try:
                return await self.store.commit(group)
            except StoreDown as error:
                self._tally.count("store_failures")
                if wait == _RETRY_S[0]:
                    _log.warning("the store does not take what happens", error=str(error))
            await asyncio.sleep(wait)
        raise AssertionError("waits have no end")


def _waits() -> Iterator[float]:
    yield from _RETRY_S
    while True:
        yield _RETRY_S[-1]


def _strip(unit: Unit, buckets: set[str]) -> None:
    """Leave buckets out of a unit."""
    unit.writes[:] = [(name, write) for name, write in unit.writes if name not in buckets]
    for name in buckets:
        del unit.epochs[name]
        unit.loose.discard(name)
        unit.kept.pop(name, None)


class Deed:
    """That a bucket is this node's, in one epoch.

    Attributes:
        bucket, epoch: which it is.
        lost: whether it is somebody else's by now: nothing more is written to it.
        over: whether it is erased: what comes late must not bring it to life again.
        kept_s: how long it is to be kept after each write, in seconds; None: for ever.
    """

    def __init__(self, bucket: str, epoch: int) -> None:
        self.bucket, self.epoch = bucket, epoch
        self.lost = self.over = False
        self.kept_s: float | None = None

    def note(self, write: Write) -> None:
        """This is written."""
        if isinstance(write, Keep):
            self.kept_s = write.seconds
        elif isinstance(write, Erase):
            self.kept_s, self.over = None, True


class Shelf:
    """A part of a book for somebody who need not know of the rest. See `npc.shelf.Shelf`."""

    def __init__(self, book: "Book", prefix: str) -> None:
        self._book = book
        self._prefix = prefix

    def take(self) -> dict[str, bytes]:
        """See `npc.shelf.Shelf`."""
        return self._book.take(self._prefix)

    def put(self, key: str, value: bytes) -> None:
        """See `npc.shelf.Shelf`."""
        self._book.put(self._prefix + key, value)

    def drop(self, key: str) -> None:
        """See `npc.shelf.Shelf`."""
        self._book.drop(self._prefix + key)


class Book:
    """A bucket in the hands of its owner.

    Attributes:
        name: of the bucket.
        epoch: of the owner.
        journal: that everything goes through.
        log: what was in its log when it was claimed.
    """

    def __init__(self, name: str, journal: Journal, holding: Holding) -> None:
        self.name = name
        self.epoch = holding.epoch
        self.journal = journal
        self.log = tuple(holding.log)
        self._found = dict(holding.values)
        self._deed = journal.deed(name, holding.epoch)
        self._loose = False

    @property
    def lost(self) -> bool:
        """Whether it is somebody else's by now."""
        return self._deed.lost

    def loosely(self) -> "Book":
        """The same book for what happens to its owner by the way: where it is somebody else's by
        now, others, with whom it shares a unit, lose nothing for it."""
        twin = copy(self)
        twin._loose = True
        return twin

    def take(self, prefix: str) -> dict[str, bytes]:
        """The values that were here when it was claimed under keys that begin so, by the rest of
        their keys, in their order. They can be taken once."""
        keys = sorted(key for key in self._found if key.startswith(prefix))
        return {key.removeprefix(prefix): self._found.pop(key) for key in keys}

    def names(self, prefix: str) -> list[str]:
        """The rests of the keys that begin so and were not taken yet, in order."""
        return sorted(key.removeprefix(prefix) for key in self._found if key.startswith(prefix))

    def shelf(self, prefix: str) -> Shelf:
        """The part whose keys begin with `prefix`."""
        return Shelf(self, prefix)

    def put(self, key: str, value: bytes) -> None:
        """Set a value."""
        self._write(Put(key, value))

    def drop(self, key: str) -> None:
        """Forget a value."""
        self._write(Drop(key))

    def append(self, s: int, value: bytes) -> None:
        """Add to the log."""
        self._write(Append(s, value))

    def trim(self, s: int) -> None:
        """Shorten the log by numbers up to `s`."""
        self._write(Trim(s))

    def keep(self, seconds: float) -> None:
        """Keep all of it for so long, from now on."""
        self._write(Keep(seconds))

    def erase(self) -> None:
        """Forget all of it. This book is at its end."""
        self._write(Erase())

    def _write(self, write: Write) -> None:
        self.journal.write(self._deed, write, loose=self._loose)
