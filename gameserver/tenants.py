"""Games that share one server and know nothing of each other.

A scene belongs to one tenant, or to the house, which is who has no tenant. All that is kept of a
scene is its tenant's with it: its NPCs, what they remember and feel, its cache. What is kept of
players beside scenes (sessions, budgets) is kept under an account: two tenants' `ann` are two.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final, Protocol

from gameserver.access import Pass
from gameserver.packs import pack_of
from gameserver.protocol import Code, Refusal
from gameserver.settings import HOUSE, TenantSettings

_RETRY_MS = 1000


def account(tenant: str | None, player: str) -> str:
    """Whom a player's name stands for: nobody's id has a slash in it. The house's players have the
    names they always had.
    """
    return player if tenant is None else f"{tenant}/{player}"


def player_of(name: str) -> str:
    """The player's own id in an account."""
    return name.rpartition("/")[2]


def tenant_of(name: str) -> str | None:
    """The tenant of an account."""
    return name.rpartition("/")[0] or None


class Work(Protocol):
    """Something that may have turns under way."""

    @property
    def under_way(self) -> int:
        """Turns that are spoken or wait."""


class Share:
    """What one tenant has under way.

    Attributes:
        calls: requests to the API that are being answered.
    """

    def __init__(self, shares: "Shares", most: int) -> None:
        """`most` at once; 0 is no limit of its own."""
        self.calls = 0
        self._shares = shares
        self._most = most
        self._busy: set[Work] = set()

    @property
    def under_way(self) -> int:
        """Turns and requests."""
        self._busy = {work for work in self._busy if work.under_way}
        return self.calls + sum(work.under_way for work in self._busy)

    def begin_call(self) -> Callable[[], None]:
        """A request begins; call what this returns at its end, once."""
        self.calls += 1
        return self._end_call

    def _end_call(self) -> None:
        self.calls -= 1

    def admit(self, work: Work | None = None) -> None:
        """Whether one more turn may begin.

        Args:
            work: that has it under way then, and is asked for it from now on; None for a request.

        Raises:
            Refusal: `busy`: this tenant has as much under way as it may.
        """
        if not self._shares.counts:
            return
        mine = self.under_way
        most = min(filter(None, (self._most, self._shares.fair(mine))), default=0)
        if most and mine >= most:
            msg = "this game has as much under way as it may"
            raise Refusal(Code.BUSY, msg, retry_ms=_RETRY_MS, limit=most, actual=mine + 1)
        if work is not None:
            self._busy.add(work)


class Shares:
    """What all tenants have under way, and how much of it each may when all of it is much."""

    def __init__(self, tenants: Mapping[str, TenantSettings], plenty: int) -> None:
        """From `plenty` turns on in all, nobody may have more than an equal share of so many."""
        self.counts = bool(tenants)
        self._plenty = plenty
        self._of: dict[str | None, Share] = {None: Share(self, 0)}
        self._of |= {name: Share(self, tenant.turns_at_once) for name, tenant in tenants.items()}

    def of(self, tenant: str | None) -> Share:
        """A tenant's, or the house's."""
        return self._of[tenant]

    def fair(self, mine: int) -> int:
        """How much one may have under way that has so much; 0: any number."""
        all_of_them = [share.under_way for share in self._of.values()]
        if sum(all_of_them) < self._plenty:
            return 0
        sharing = sum(map(bool, all_of_them)) + (not mine)
        return max(self._plenty // sharing, 1)


@dataclass(frozen=True, slots=True)
class Remit:
    """How far somebody's word reaches: what they may see, and have forgotten.

    Attributes:
        game: a tenant, or `HOUSE`, that it ends with; None: it reaches all of them.
        owner: tells whose a scene is, by the id that it runs under; None: the house's. Any thread
            may ask.
    """

    game: str | None
    owner: Callable[[str], str | None]

    def scene(self, stream: str) -> bool:
        """Whether it reaches a scene."""
        return self.game is None or (self.owner(stream) or HOUSE) == self.game

    def account(self, name: str) -> bool:
        """Whether it reaches a player, by the account."""
        return self.game is None or (tenant_of(name) or HOUSE) == self.game


#: Of who may see everything.
EVERYTHING: Final = Remit(None, lambda stream: None)


class Tenants:
    """Which scenes are whose."""

    def __init__(self, tenants: Mapping[str, TenantSettings]) -> None:
        self._owner = {scene: name for name, tenant in tenants.items() for scene in tenant.scenes}

    def owner(self, scene: str) -> str | None:
        """Whose pack it is, by its id; None: the house's."""
        return self._owner.get(scene)

    def pack_of(self, stream: str, packs: Iterable[str]) -> str:
        """The pack that a scene plays, by the id that it runs under. A pack that a tenant has in
        the settings counts also while it is in no folder: nobody else's instance takes its name.

        Args:
            packs: ids of those that are there.
        """
        return pack_of(stream, chain(packs, self._owner))

    def remit(
        self, game: str | None, packs: Iterable[str], played: Mapping[str, str] | None = None
    ) -> Remit:
        """What a game may see; see `Remit`.

        Args:
            packs: ids of those that are there.
            played: packs of running scenes, by the ids that these run under.
        """
        if game is None:
            return EVERYTHING
        there, running = tuple(packs), dict(played or {})

        @cache
        def owner(stream: str) -> str | None:
            return self.owner(running.get(stream) or self.pack_of(stream, there))

        return Remit(game, owner)

    def admit(self, grant: Pass, scene: str) -> bool:
        """Whether a scene exists for who has this pass, and is open to them."""
        return self.owner(scene) == grant.tenant and grant.may_enter(scene)
