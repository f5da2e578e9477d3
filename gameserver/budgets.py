"""How much may be generated: turns and tokens per NPC, per player, per key of the API, in total."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Literal

import msgspec

from gameserver.protocol import Code, Refusal
from gameserver.settings import Allowance, BudgetSettings, TenantSettings
from gameserver.tally import Tally
from gameserver.tenants import Shares, account

_DAY_S = 86_400
_MINUTE_S = 60.0


@dataclass(slots=True)
class Account:
    """What one of them has used.

    Attributes:
        day: the day, in UTC and from 1970 on, that `tokens` are of.
        tokens: spent on that day.
        turns: left of this minute's at `at`, wall clock in seconds.
        last: wall clock of its last turn, 0 before the first.
    """

    day: int = 0
    tokens: int = 0
    turns: float = 0.0
    at: float = 0.0
    last: float = 0.0


class Books(msgspec.Struct, frozen=True, omit_defaults=True):
    """All accounts, for a store."""

    npcs: dict[str, Account]
    players: dict[str, Account]
    total: Account
    callers: dict[str, Account] = {}
    tenants: dict[str, Account] = {}


Kind = Literal["npc", "player", "caller", "tenant", "total"]
#: An account: its kind, and whose it is; there is one of "total".
Name = tuple[Kind, str]
_TOTAL: Name = ("total", "")


class Budgets:
    """Keeps the accounts. A turn is asked for with `check` and booked with `turn`, and what it
    costs with `spend`; a request to the API with `call` and `spend_call`.

    Time is the wall clock, so that accounts outlive the process: `snapshot` and `restore`.

    Attributes:
        share: what the tenant has under way, on whose account all of this is.
    """

    def __init__(
        self,
        settings: BudgetSettings,
        tally: Tally,
        clock: Callable[[], float] = time.time,
        tenants: Mapping[str, TenantSettings] | None = None,
        fair_turns: int = 1,
    ) -> None:
        """`tenants`, and `fair_turns`: see `gameserver.tenants`."""
        self._settings = settings
        self._tenant: str | None = None
        self._tenants = {
            name: Allowance(
                turns_per_minute=tenant.turns_per_minute, tokens_per_day=tenant.tokens_per_day
            )
            for name, tenant in (tenants or {}).items()
        }
        self._shares = Shares(tenants or {}, fair_turns)
        self.share = self._shares.of(None)
        self._tally = tally
        self._clock = clock
        self._kept: dict[Kind, OrderedDict[str, Account]] = {
            "npc": OrderedDict(),
            "player": OrderedDict(),
            "caller": OrderedDict(),
            "tenant": OrderedDict(),
            "total": OrderedDict(),
        }

    def of(self, tenant: str | None) -> "Budgets":
        """The same books, on the account of a tenant: its players and keys are other people than
        those of the same name elsewhere.
        """
        mine = copy(self)
        mine._tenant, mine.share = tenant, self._shares.of(tenant)
        return mine

    def check(self, npc: str, player: str) -> None:
        """Whether one more turn may begin. Books nothing.

        Args:
            npc: id of the NPC, and of its scene where several have one of that id.
            player: who would be answered.

        Raises:
            Refusal: `over_budget`, with the time after which a new try makes sense.
        """
        self._check(self._of_turn(npc, player))

    def turn(self, npc: str, player: str) -> None:
        """A turn begins, or waits to."""
        self._begin(self._of_turn(npc, player))

    def spend(self, npc: str, player: str, tokens: int) -> None:
        """A turn has cost tokens, or what an NPC thinks of one has. One that runs is not cut off by
        that: the next is refused.
        """
        self._spend(self._of_turn(npc, player), tokens)

    def may_think(self, npc: str, player: str) -> bool:
        """Whether something may be computed about a player that nobody waits for: it needs tokens,
        and is no turn.
        """
        today = _day(self._clock())
        for name in self._of_turn(npc, player):
            account, most = self._look(name), self._allowance(name).tokens_per_day
            if most and account.day == today and account.tokens >= most:
                self._tally.count(f"over_budget_{name[0]}")
                return False
        return True

    def call(self, caller: str) -> None:
        """A request to the API begins. Raises `Refusal` as `check` does; then nothing is booked."""
        concerned = self._of_call(caller)
        self._check(concerned)
        self._begin(concerned)

    def spend_call(self, caller: str, tokens: int) -> None:
        """A request to the API has cost tokens."""
        self._spend(self._of_call(caller), tokens)

    def of_npc(self, npc: str) -> "Spending":
        """What an NPC has used."""
        return self._spending(("npc", npc))

    def of_all(self) -> "Spending":
        """What all have used together."""
        return self._spending(_TOTAL)

    def of_game(self, game: str | None) -> "Spending":
        """What a tenant has used; the house, which has no account of its own, sees all together."""
        return self._spending(("tenant", game)) if game in self._tenants else self.of_all()

    def gauges(self) -> dict[str, float]:
        """What was spent today."""
        return {"budget_tokens_today": self.of_all().tokens}

    def snapshot(self) -> bytes:
        """All accounts as JSON."""
        npc, player, caller, tenant = (
            dict(self._kept[kind]) for kind in ("npc", "player", "caller", "tenant")
        )
        return msgspec.json.encode(Books(npc, player, self._look(_TOTAL), caller, tenant))

    def restore(self, data: bytes) -> None:
        """Go on with the accounts of a snapshot.

        Raises:
            ValueError: it is none; nothing has changed.
        """
        try:
            books = msgspec.json.decode(data, type=Books)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"no snapshot of budgets: {error}") from None
        self._kept["npc"] = OrderedDict(books.npcs)
        self._kept["player"] = OrderedDict(books.players)
        self._kept["caller"] = OrderedDict(books.callers)
        self._kept["tenant"] = OrderedDict(books.tenants)
        self._kept["total"] = OrderedDict({"": books.total})

    def payer(self, player: str) -> str:
        """The name of a player's account."""
        return account(self._tenant, player)

    def _of_turn(self, npc: str, player: str) -> tuple[Name, ...]:
        return (("npc", npc), ("player", self.payer(player)), *self._of_all())

    def _of_call(self, caller: str) -> tuple[Name, ...]:
        return (("caller", self.payer(caller)), *self._of_all())

    def _of_all(self) -> tuple[Name, ...]:
        return (_TOTAL,) if self._tenant is None else (("tenant", self._tenant), _TOTAL)

    def _check(self, concerned: Iterable[Name]) -> None:
        now = self._clock()
        for name in concerned:
            try:
                _check(self._look(name), self._allowance(name), now, name[0])
            except Refusal:
                self._tally.count(f"over_budget_{name[0]}")
                raise

    def _begin(self, concerned: Iterable[Name]) -> None:
        now = self._clock()
        for name in concerned:
            account = self._account(name)
            account.turns = _turns_left(account, self._allowance(name), now) - 1
            account.at = account.last = now

    def _spend(self, concerned: Iterable[Name], tokens: int) -> None:
        today = _day(self._clock())
        for name in concerned:
            account = self._account(name)
            if account.day != today:
                account.day, account.tokens = today, 0
            account.tokens += tokens
        self._tally.count("budget_tokens", tokens)

    def _spending(self, name: Name) -> "Spending":
        return _spending(self._look(name), self._allowance(name), self._clock())

    def _allowance(self, name: Name) -> Allowance:
        if name[0] == "tenant":
            return self._tenants.get(name[1], Allowance())
        allowance: Allowance = getattr(self._settings, name[0])
        return allowance

    def _look(self, name: Name) -> Account:
        """An account, or what would be in it."""
        return self._kept[name[0]].get(name[1]) or Account()

    def _account(self, name: Name) -> Account:
        accounts = self._kept[name[0]]
        account = accounts.setdefault(name[1], Account())
        accounts.move_to_end(name[1])
        if len(accounts) > self._settings.accounts:
            accounts.popitem(last=False)
        return account


def account_of(pack: str, npc: str) -> str:
    """The name of an NPC's account: in all running scenes of a pack the same."""
    return f"{pack}/{npc}"


@dataclass(frozen=True, slots=True)
class Purse:
    """Pays for what one NPC thinks; see `npc.purse`."""

    budgets: Budgets
    npc: str

    def allows(self, player: str) -> bool:
        """See `npc.purse.Purse`."""
        return self.budgets.may_think(self.npc, player)

    def payer(self, player: str) -> str:
        """See `npc.purse.Purse`."""
        return self.budgets.payer(player)

    def pay(self, player: str, tokens: int) -> None:
        """See `npc.purse.Purse`."""
        self.budgets.spend(self.npc, player, tokens)


class Spending(msgspec.Struct, frozen=True):
    """What an account has used; a limit of 0 is none.

    Attributes:
        tokens, tokens_per_day: spent today, and how many may be.
        turns, turns_per_minute: that may begin now, and within a minute.
    """

    tokens: int
    tokens_per_day: int
    turns: float
    turns_per_minute: int


def _spending(account: Account, allowance: Allowance, now: float) -> Spending:
    tokens = account.tokens if account.day == _day(now) else 0
    turns = _turns_left(account, allowance, now)
    return Spending(tokens, allowance.tokens_per_day, turns, allowance.turns_per_minute)


#: How each is called in a refusal.
_NAMES = {
    "npc": "this NPC",
    "player": "you",
    "caller": "this key",
    "tenant": "this game",
    "total": "this server",
}


def _check(account: Account, allowance: Allowance, now: float, who: str) -> None:
    if allowance.tokens_per_day and account.day == _day(now):
        spent, most = account.tokens, allowance.tokens_per_day
        if spent >= most:
            wait_s = (_day(now) + 1) * _DAY_S - now
            raise _over(f"no more words today for {_NAMES[who]}", wait_s, most, spent)
    # A clock that was set back does not tell how long ago that was, and keeps nobody waiting.
    if account.last <= now and (wait_s := account.last + allowance.cooldown_s - now) > 0:
        raise _over(f"too soon after the last turn for {_NAMES[who]}", wait_s)
    if allowance.turns_per_minute and (left := _turns_left(account, allowance, now)) < 1:
        wait_s = (1 - left) * _MINUTE_S / allowance.turns_per_minute
        raise _over(f"too many turns a minute for {_NAMES[who]}", wait_s)


def _turns_left(account: Account, allowance: Allowance, now: float) -> float:
    """Turns that may begin now; they come back one by one over a minute."""
    most = float(allowance.turns_per_minute)
    if not account.last or now < account.at:  # none yet, or the clock was set back
        return most
    return min(most, account.turns + (now - account.at) * most / _MINUTE_S)


def _over(
    problem: str, wait_s: float, limit: int | None = None, actual: int | None = None
) -> Refusal:
    retry_ms = max(1, math.ceil(wait_s * 1000))
    return Refusal(Code.OVER_BUDGET, problem, retry_ms=retry_ms, limit=limit, actual=actual)


def _day(now: float) -> int:
    return int(now // _DAY_S)
