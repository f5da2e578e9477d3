"""How much may be generated: turns and tokens per NPC, per player and in total."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gameserver.protocol import Code, Refusal
from gameserver.settings import Allowance, BudgetSettings
from gameserver.tally import Tally

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


class Books(msgspec.Struct, frozen=True):
    """All accounts, for a store."""

    npcs: dict[str, Account]
    players: dict[str, Account]
    total: Account


class Budgets:
    """Keeps the accounts. A turn is asked for with `check` and booked with `turn`, and what it
    costs with `spend`.

    Time is the wall clock, so that accounts outlive the process: `snapshot` and `restore`.
    """

    def __init__(
        self, settings: BudgetSettings, tally: Tally, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._tally = tally
        self._clock = clock
        self._npcs: OrderedDict[str, Account] = OrderedDict()
        self._players: OrderedDict[str, Account] = OrderedDict()
        self._total = Account()

    def check(self, npc: str, player: str) -> None:
        """Whether one more turn may begin. Books nothing.

        Args:
            npc: id of the NPC, and of its scene where several have one of that id.
            player: who would be answered.

        Raises:
            Refusal: `over_budget`, with the time after which a new try makes sense.
        """
        now, settings, none = self._clock(), self._settings, Account()
        for who, account, allowance in (
            ("npc", self._npcs.get(npc, none), settings.npc),
            ("player", self._players.get(player, none), settings.player),
            ("total", self._total, settings.total),
        ):
            try:
                _check(account, allowance, now, who)
            except Refusal:
                self._tally.count(f"over_budget_{who}")
                raise

    def turn(self, npc: str, player: str) -> None:
        """A turn begins, or waits to."""
        now = self._clock()
        for account, allowance in self._concerned(npc, player):
            account.turns = _turns_left(account, allowance, now) - 1
            account.at = account.last = now

    def spend(self, npc: str, player: str, tokens: int) -> None:
        """A turn has cost tokens. One that runs is not cut off by that: the next is refused."""
        today = _day(self._clock())
        for account, _ in self._concerned(npc, player):
            if account.day != today:
                account.day, account.tokens = today, 0
            account.tokens += tokens
        self._tally.count("budget_tokens", tokens)

    def of_npc(self, npc: str) -> "Spending":
        """What an NPC has used."""
        return _spending(self._npcs.get(npc, Account()), self._settings.npc, self._clock())

    def of_all(self) -> "Spending":
        """What all have used together."""
        return _spending(self._total, self._settings.total, self._clock())

    def gauges(self) -> dict[str, float]:
        """What was spent today."""
        today = self._total.tokens if self._total.day == _day(self._clock()) else 0
        return {"budget_tokens_today": today}

    def snapshot(self) -> bytes:
        """All accounts as JSON."""
        return msgspec.json.encode(Books(dict(self._npcs), dict(self._players), self._total))

    def restore(self, data: bytes) -> None:
        """Go on with the accounts of a snapshot.

        Raises:
            ValueError: it is none; nothing has changed.
        """
        try:
            books = msgspec.json.decode(data, type=Books)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"no snapshot of budgets: {error}") from None
        self._npcs, self._players = OrderedDict(books.npcs), OrderedDict(books.players)
        self._total = books.total

    def _concerned(self, npc: str, player: str) -> list[tuple[Account, Allowance]]:
        settings = self._settings
        return [
            (self._account(self._npcs, npc), settings.npc),
            (self._account(self._players, player), settings.player),
            (self._total, settings.total),
        ]

    def _account(self, accounts: OrderedDict[str, Account], who: str) -> Account:
        account = accounts.setdefault(who, Account())
        accounts.move_to_end(who)
        if len(accounts) > self._settings.accounts:
            accounts.popitem(last=False)
        return account


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
_NAMES = {"npc": "this NPC", "player": "you", "total": "this server"}


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
