"""Who goes first. A policy sorts everybody who waits; the lowest key goes first."""

import math
from collections.abc import Sequence
from typing import Protocol

from engine.config import EngineConfig
from engine.prefixes import Prefix


class Waiter(Protocol):
    """What a policy may know of somebody who waits.

    Attributes:
        priority: class, 0 is most urgent.
        arrived: when it came, in seconds.
        chain: prefix nodes it needs.
        shares: on whose account it runs, the narrowest first (a player, then a scene).
    """

    @property
    def priority(self) -> int: ...  # noqa: D102
    @property
    def arrived(self) -> float: ...  # noqa: D102
    @property
    def chain(self) -> Sequence[Prefix]: ...  # noqa: D102
    @property
    def shares(self) -> tuple[str, ...]: ...  # noqa: D102


Key = tuple[float, ...]

#: In `fair`, for how many times `ageing_s` accounts count. By far longer than an ordinary wait:
#: where everybody waits so long there is no order that would be fair.
_FAIR_PATIENCE = 4.0


class Policy(Protocol):
    """The order of those who wait."""

    def key(self, waiter: Waiter, now: float) -> Key:
        """Sort key at time `now` (seconds)."""

    def served(self, waiter: Waiter, tokens: int, now: float) -> None:
        """Take note that a step fed `tokens` tokens for this one."""

    def spoke(self, speakers: Sequence[Waiter], now: float) -> None:
        """Take note that a step fed each of these a token."""


class Fifo:
    """First come, first served, whatever the class."""

    def key(self, waiter: Waiter, now: float) -> Key:
        """See `Policy.key`."""
        return (waiter.arrived,)

    def served(self, waiter: Waiter, tokens: int, now: float) -> None:
        """Keeps no account."""

    def spoke(self, speakers: Sequence[Waiter], now: float) -> None:
        """Keeps no account."""


class Priority:
    """Classes with ageing: the key is `class - waited / ageing_s`.

    A request of class c goes before fresh ones of class 0 after c × ageing_s seconds, so nobody
    starves however many important ones keep coming.
    """

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s

    def key(self, waiter: Waiter, now: float) -> Key:
        """See `Policy.key`; ties go to the earlier arrival."""
        return waiter.priority - (now - waiter.arrived) / self._ageing_s, waiter.arrived

    def served(self, waiter: Waiter, tokens: int, now: float) -> None:
        """Keeps no account."""

    def spoke(self, speakers: Sequence[Waiter], now: float) -> None:
        """Keeps no account."""


class Fair:
    """Least served first: by player, then by scene, then by arrival.

    Service fades with a half-life, so that a player who was quiet for a while has no claim to
    everything and one who talked much is forgiven. It also fades with waiting: after `patience_s`
    no account counts any more and the earliest goes first, so that a player who was served much
    does not starve behind a stream of others who never were.
    """

    _HALF_LIFE_S = 10.0
    _FORGOTTEN = 0.5  # tokens; smaller accounts are closed
    _LEVELS = 2  # whoever has fewer shares counts as unserved there: keys must be comparable
    _ACCOUNTS = 4096

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._accounts: dict[str, tuple[float, float]] = {}  # share -> (tokens, as of)
        self._tidy_at = self._ACCOUNTS

    def key(self, waiter: Waiter, now: float) -> Key:
        """See `Policy.key`."""
        counts = max(1 - (now - waiter.arrived) / self._patience_s, 0.0)
        balances = [self._balance(share, now) * counts for share in waiter.shares]
        balances += [0.0] * (self._LEVELS - len(balances))
        return (*balances, waiter.arrived)

    def served(self, waiter: Waiter, tokens: int, now: float) -> None:
        """Charge every share of `waiter`."""
        for share in waiter.shares:
            self._accounts[share] = (self._balance(share, now) + tokens, now)
        if len(self._accounts) > self._tidy_at:
            balances = {share: self._balance(share, now) for share in self._accounts}
            self._accounts = {s: (b, now) for s, b in balances.items() if b > self._FORGOTTEN}
            # Next time when as many have come again: a step must not pay for all accounts.
            self._tidy_at = max(self._ACCOUNTS, 2 * len(self._accounts))

    def spoke(self, speakers: Sequence[Waiter], now: float) -> None:
        """Charge each of them for a token."""
        for waiter in speakers:
            self.served(waiter, 1, now)

    def _balance(self, share: str, now: float) -> float:
        tokens, as_of = self._accounts.get(share, (0.0, now))
        return tokens * math.pow(0.5, (now - as_of) / self._HALF_LIFE_S)


class Elastic:
    """Throughput first: whoever has least to compute before it can join the batch.

    Whoever has waited longer than `patience_s` goes before everybody who has not.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s

    def key(self, waiter: Waiter, now: float) -> Key:
        """See `Policy.key`."""
        patient = now - waiter.arrived <= self._patience_s
        missing = sum(node.length - node.scheduled for node in waiter.chain)
        return patient, missing if patient else 0, waiter.arrived

    def served(self, waiter: Waiter, tokens: int, now: float) -> None:
        """Keeps no account."""

    def spoke(self, speakers: Sequence[Waiter], now: float) -> None:
        """Keeps no account."""


def make_policy(config: EngineConfig) -> Policy:
    """The policy that `scheduling_policy` names."""
    match config.scheduling_policy:
        case "fifo":
            return Fifo()
        case "priority":
            return Priority(config.ageing_s)
        case "fair":
            return Fair(_FAIR_PATIENCE * config.ageing_s)
        case "elastic":
            return Elastic(config.ageing_s)
