"""What all clients of one address may do together, however many connections and names they have."""

from collections import OrderedDict

from gameserver.addresses import Networks, contains, neighbourhood
from gameserver.admission import TokenBucket
from gameserver.settings import Guards, Limits

#: Addresses that are remembered; with more, those from which nobody came for the longest time begin
#: anew.
_MOST = 10_000


class Household:
    """The token buckets of one address."""

    __slots__ = ("_bytes", "_identifies", "_messages", "_says")

    def __init__(self, limits: Limits) -> None:
        self._messages = TokenBucket(limits.messages_per_s_per_ip, limits.messages_burst_per_ip)
        self._bytes = TokenBucket(limits.bytes_per_s_per_ip, limits.bytes_burst_per_ip)
        self._says = TokenBucket(limits.says_per_s_per_ip, limits.says_burst_per_ip)
        self._identifies = TokenBucket(
            limits.identifies_per_s_per_ip, limits.identifies_burst_per_ip
        )

    def message(self, size: int) -> float:
        """A message of so many bytes. Returns 0, or the seconds after which a try makes sense."""
        return max(self._messages.take(), self._bytes.take(size))

    def say(self) -> float:
        """A line of a player; the same."""
        return self._says.take()

    def identify(self) -> float:
        """Somebody who shows a credential; the same."""
        return self._identifies.take()


class _Unlimited(Household):
    """Of an address that stands for many: nothing is counted."""

    __slots__ = ()

    def __init__(self) -> None:
        """It has no buckets."""

    def message(self, size: int) -> float:
        """See `Household`."""
        return 0.0

    def say(self) -> float:
        """See `Household`."""
        return 0.0

    def identify(self) -> float:
        """See `Household`."""
        return 0.0


#: Who shares with nobody.
UNLIMITED: Household = _Unlimited()


class Households:
    """All addresses that clients came from lately."""

    def __init__(self, limits: Limits, guards: Guards) -> None:
        self._limits = limits
        self._shared = Networks(guards.shared_networks)
        self._known: OrderedDict[str, Household] = OrderedDict()

    def of(self, address: str) -> Household:
        """Whom a client of this address has to share with."""
        if contains(self._shared, address):
            return UNLIMITED
        key = neighbourhood(address)
        found = self._known.pop(key, None) or Household(self._limits)
        self._known[key] = found
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return found
