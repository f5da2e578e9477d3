"""Who gets in and how fast: token buckets, repeated offences, sessions per player and address."""

import math
import time
from collections import Counter, deque

from gameserver.addresses import Networks, contains, neighbourhood
from gameserver.protocol import Close, Code, Refusal
from gameserver.settings import Settings
from gameserver.tenants import tenant_of


class TokenBucket:
    """Lets `rate` things per second through on average, `burst` at once."""

    __slots__ = ("_burst", "_level", "_rate", "_updated")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = float(burst)
        self._updated = time.monotonic()

    def take(self, amount: float = 1.0) -> float:
        """Take `amount` if it is there. Returns 0, or the seconds after which a try makes sense.
        What is more than may come at once takes all of that.
        """
        now, amount = time.monotonic(), min(amount, self._burst)
        self._level = min(self._burst, self._level + (now - self._updated) * self._rate)
        self._updated = now
        if self._level >= amount:
            self._level -= amount
            return 0.0
        return (amount - self._level) / self._rate


class Offences:
    """Counts something bad within a sliding window."""

    __slots__ = ("_limit", "_times", "_window")

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window = window_s
        self._times: deque[float] | None = None  # most never do anything bad, and it is large

    def add(self) -> bool:
        """Count one now. True if that makes `limit` of them within the window."""
        now = time.monotonic()
        if self._times is None:
            self._times = deque(maxlen=self._limit)
        self._times.append(now)
        return len(self._times) == self._limit and now - self._times[0] <= self._window


def rate_limited(wait_s: float, what: str, *, close: Close | None = None) -> Refusal:
    """The refusal of something that came too fast; a new try makes sense after `wait_s`."""
    wait_ms = max(1, math.ceil(wait_s * 1000))
    return Refusal(Code.RATE_LIMITED, f"too many {what}", retry_ms=wait_ms, close=close)


class Admission:
    """Counts the sessions of each player and address, and of the node.

    Attributes:
        sessions: of the node.
    """

    def __init__(self, settings: Settings) -> None:
        self._limits = settings.limits
        self._shared = Networks(settings.guards.shared_networks)
        self._players: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._tenants: Counter[str] = Counter()
        self._most = {name: tenant.sessions for name, tenant in settings.tenants.items()}
        self._says: dict[str, TokenBucket] = {}
        self.sessions = 0

    def enter(self, player: str, address: str, *, adopted: bool = False) -> TokenBucket:
        """Count a new session; each one needs a `leave` later.

        Args:
            player: an account, see `gameserver.tenants`.
            adopted: an earlier process let it in; there is room for it.

        Returns:
            What the player may still say.

        Raises:
            Refusal: fatal, a limit is reached; nothing was counted.
        """
        if not adopted:
            self._check_limits(player, address)
        self.sessions += 1
        self._players[player] += 1
        self._addresses[neighbourhood(address)] += 1
        self._tenants[tenant_of(player) or ""] += 1
        if player not in self._says:
            rate, burst = self._limits.says_per_s, self._limits.says_burst
            self._says[player] = TokenBucket(rate, burst)
        return self._says[player]

    def has_room(self, player: str) -> bool:
        """Whether a player may have one more session."""
        return self._players[player] < self._limits.sessions_per_player

    def leave(self, player: str, address: str) -> None:
        """A session that `enter` counted is over."""
        self.sessions -= 1
        for counter, key in (
            (self._players, player),
            (self._addresses, neighbourhood(address)),
            (self._tenants, tenant_of(player) or ""),
        ):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]
        if player not in self._players:
            del self._says[player]

    def _check_limits(self, player: str, address: str) -> None:
        limits = self._limits
        if self.sessions >= limits.sessions:
            raise Refusal(Code.BUSY, "this server is full", retry_ms=5000, close=Close.OVERLOADED)
        self._check(self._players[player], limits.sessions_per_player, "sessions of one player")
        tenant = tenant_of(player) or ""
        if most := self._most.get(tenant, 0):
            self._check(self._tenants[tenant], most, "sessions of one game")
        if not contains(self._shared, address):
            here = self._addresses[neighbourhood(address)]
            self._check(here, limits.sessions_per_ip, "sessions of one address")

    def _check(self, count: int, limit: int, what: str) -> None:
        if count >= limit:
            raise Refusal(
                Code.RATE_LIMITED,
                f"too many {what}",
                retry_ms=5000,
                limit=limit,
                actual=count + 1,
                close=Close.RATE_LIMITED,
            )
