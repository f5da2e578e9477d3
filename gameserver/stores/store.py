"""What every store can do. Its words are buckets, keys and numbers; it knows no scenes or players.

A bucket has values by key, and a log of numbered values. One owner at a time writes to it: whoever
claimed it last, known by its epoch. Writes with a lower epoch are refused, so that an owner who was
given up for dead cannot do harm when it wakes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class StoreError(Exception):
    """A store cannot be used; the message says what is wrong and what to do."""


class StoreDown(Exception):
    """A store does not answer just now. Nothing is known of what was asked; ask again."""


class Changed(Exception):
    """A value is not the one that was expected, so nothing was done."""


@dataclass(frozen=True, slots=True)
class Put:
    """Set the value of a key."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a key."""

    key: str


@dataclass(frozen=True, slots=True)
class Append:
    """Add a value to the log. A number that is not above all others was written before, and is
    left as it is."""

    s: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Trim:
    """Forget log values up to number `s`. The newest one is never asked to go."""

    s: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Forget the whole bucket after so many seconds, unless this is said again."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Erase:
    """Forget everything in the bucket."""


Write = Put | Drop | Append | Trim | Keep | Erase


@dataclass(frozen=True, slots=True)
class Unit:
    """Writes that come to be together or, if one of its buckets is somebody else's, not at all.

    Attributes:
        number: rises from unit to unit of one process.
        epochs: that of the writer, by bucket.
        writes: each with its bucket, in order.
        loose: buckets of which only their own writes do not come to be if they are somebody else's.
        kept: for how many seconds to keep buckets, as an earlier `Keep` has it.
    """

    number: int
    epochs: dict[str, int] = field(default_factory=dict)
    writes: list[tuple[str, Write]] = field(default_factory=list)
    loose: set[str] = field(default_factory=set)
    kept: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holding:
    """A bucket that was claimed, with all there is in it.

    Attributes:
        epoch: above that of every earlier owner.
        values: by key.
        log: number and value, in order.
    """

    epoch: int
    values: Mapping[str, bytes]
    log: Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A bucket that another node holds: its name, and where its players connect ("" if unknown)."""

    node: str
    url: str


class Store(Protocol):
    """A place that remembers. All errors are `StoreDown`, but for those that `open` names.

    Attributes:
        survives: whether what is written outlives this process.
        shared: whether other nodes use it, too: claims are leases, which must be renewed.
    """

    @property
    def survives(self) -> bool: ...  # noqa: D102
    @property
    def shared(self) -> bool: ...  # noqa: D102

    async def open(self) -> None:
        """Get ready. Raises `StoreError`."""

    async def close(self) -> None:
        """Let go of everything. Idempotent."""

    async def claim(
        self, bucket: str, *, lease: bool, expected: tuple[str, bytes] | None = None
    ) -> Holding | Elsewhere:
        """Become the owner of a bucket, whether there is anything in it or not.

        Args:
            lease: leave it to a node that holds a lease on it; else take it from whoever has it.
            expected: a key and its value.

        Raises:
            Changed: that key has another value; the bucket's owner stays.
        """

    async def peek(self, bucket: str, key: str) -> bytes | None:
        """One value, whoever owns the bucket."""

    async def keys(self, bucket: str) -> Sequence[str]:
        """All keys, whoever owns the bucket."""

    async def commit(self, units: Sequence[Unit]) -> frozenset[str]:
        """Write units in order; writing the same ones again changes nothing.

        Returns:
            Buckets that are lost to the writer: those that somebody else owns by now, and those
            that share a unit with a lost one in which that is not loose. Units that touch them had
            no effect, but for those in which all of them are loose: these had, without them.
        """

    async def buckets(self, prefix: str) -> Sequence[str]:
        """All buckets with something in them whose names begin so, whoever owns them."""

    async def scrub(self) -> None:
        """Overwrite what was forgotten, as far as it is this process's business. May take long."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal of leases brought.

    Attributes:
        lost: buckets that somebody else owns by now.
        cards: of all nodes that live, by name.
    """

    lost: frozenset[str]
    cards: Mapping[str, bytes]


class SharedStore(Store, Protocol):
    """A store that several nodes use. Leases end by themselves if they are not renewed."""

    async def renew(self, held: Mapping[str, int], card: bytes = b"") -> Renewal:
        """Hold on to leases, and say that this node lives, for as long as a lease.

        Args:
            held: epochs by bucket.
            card: what the others are told of this node.
        """

    async def card(self, node: str) -> bytes | None:
        """What a node has said of itself, if it lives."""

    async def reserve(self, bucket: str, node: str, url: str) -> Elsewhere | None:
        """Keep a bucket that nobody holds for a node, until that claims it or is not heard of.

        Returns:
            Who has it now, this node too, or None if `node` does not live: then nobody has it.
        """

    async def holder(self, bucket: str) -> Elsewhere | None:
        """The other node that holds a lease on a bucket, if one does."""

    async def release(self, held: Mapping[str, int]) -> None:
        """Let go of leases, those that are still ours; this node is not heard of any more."""

    async def leave(self, name: str, value: bytes, seconds: float) -> None:
        """Leave a value where any node may take it, within so many seconds."""

    async def take(self, name: str) -> bytes | None:
        """Take what was left there: of many who try, one has it, and the others None."""
