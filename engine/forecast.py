"""How soon a request that comes now would have its first token.

The engine's thread takes stock now and then (`Forecast.take_stock`); any thread may ask
(`Forecast.of`). In between, requests are counted as they are submitted, so that of a hundred that
come in one moment the last is told of the ninety-nine before it.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.measures import CLASSES
from engine.outputs import Usage
from engine.prefixes import Prefix
from engine.request import Request, State

if TYPE_CHECKING:
    from engine.scheduler import Scheduler

_GROUPS = len(CLASSES)
_Totals = tuple[tuple[int, float], ...]
#: Weight of the newest request in what is known of all.
_NEWEST = 1 / 16
#: Weight of the newest error. Small: an error shows only after the wait that was predicted, and
#: who corrects faster than that corrects too much, and lets in too many, then too few.
_CAREFUL = 1 / 256
#: Before any has ended: tokens a request reads and says.
_TOKENS_READ, _TOKENS_SAID = 96.0, 32.0
#: Seconds that forecasts may be off without teaching anything: a step or two.
_SMALL_S = 0.05
#: The rates at which requests come are those of about so many seconds.
_RATE_S = 10.0
#: How far what was learnt from errors may change a forecast, either way.
_MOST_CORRECTION = 3.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """When a first token is due.

    Attributes:
        seconds: from now.
        alone_s: the same on an idle engine; what is beyond is due to others.
        speech_s: how long replies go on after it, as they do by now.
        speech_alone_s: the same on an idle engine.
    """

    seconds: float
    alone_s: float = 0.0
    speech_s: float = 0.0
    speech_alone_s: float = 0.0


#: Of an engine that cannot tell.
UNKNOWN = Expectation(0.0)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What would be served before a newcomer of one class.

    Attributes:
        waiting: requests that take a slot before it.
        tokens: that are read before its own.
        free: slots it may have that nobody has.
        slots: that it may have at all.
    """

    waiting: int
    tokens: float
    free: int
    slots: int


@dataclass(frozen=True, slots=True)
class _Stock:
    """What the engine's thread saw.

    Attributes:
        seen: what had been let in when it knew of everybody.
        ahead: for newcomers of each class.
        busy: whether anybody speaks or reads.
        hold_s: how long a request has its slot.
        most: tokens that a step reads at most beside those who speak now.
        bare_s: of such a step but for the tokens; `idle_s`: of one in which nobody speaks.
        token_s: of each token.
    """

    seen: _Totals
    ahead: tuple[_Ahead, ...]
    busy: bool
    hold_s: float
    most: int
    bare_s: float
    idle_s: float
    token_s: float

    def reading_s(self, tokens: float) -> float:
        """Seconds until so many tokens are read, beside those who speak now."""
        return max(tokens / self.most, 1) * self.bare_s + tokens * self.token_s


@dataclass(frozen=True, slots=True)
class _Newcomer:
    """Somebody who arrives now; see `engine.policy.Waiter`."""

    priority: int
    arrived: float
    chain: tuple[Prefix, ...] = ()
    shares: tuple[str, ...] = ()


class Forecast:
    """Predicts first tokens from who waits, what a step costs, and how long replies hold a slot.

    It learns how long that is, how much of a prompt is not in the cache and how many come of each
    class, and corrects itself by the errors of past forecasts, class by class.
    """

    def __init__(self, scheduler: "Scheduler", now: float) -> None:
        self._scheduler = scheduler
        # Requests and tokens let in so far, by class; and what they were after each request that
        # the engine's thread has not seen yet, and after the last that it has.
        self._let_in: _Totals = ((0, 0.0),) * _GROUPS
        self._unseen: deque[tuple[int, _Totals]] = deque()
        self._seen = self._let_in
        self._unread_share = 1.0  # of prompts' own tokens
        self._read = _TOKENS_READ
        self._said = _TOKENS_SAID
        self._hold_s: float | None = None
        self._rates = [(0.0, now)] * _GROUPS  # requests a second, as of the last one
        self._ageing_s = scheduler.ageing_s
        self._bias = [0.0] * _GROUPS  # mean logarithm of actual ÷ predicted
        self._stock = self._look(now)

    # Any thread

    def of(
        self, priority: int, own: int | None = None, prefix: Prefix | None = None
    ) -> Expectation:
        """What a request may expect that comes now.

        Args:
            priority: its class.
            own: tokens of its prompt behind `prefix`; None for as many as most have.
            prefix: which it continues; what is not computed of it is to be read, too.
        """
        group, stock = min(priority, _GROUPS - 1), self._stock
        tokens = self._read if own is None else self._unread_share * own
        tokens += _missing(prefix.chain() if prefix is not None else ())
        ahead = stock.ahead[group]
        waiting, before = ahead.waiting, ahead.tokens
        for other in range(group + 1):
            (count, unread), (known, read) = self._let_in[other], stock.seen[other]
            waiting += count - known
            before += unread - read
        lacking = waiting + 1 - ahead.free
        for_slot_s = self._for_slot_s(group, max(lacking, 0), stock.hold_s / ahead.slots)
        under_way_s = stock.reading_s(min(before, stock.most)) / 2 if stock.busy else 0.0
        if group == 0:  # its line is read whole, and others pause for it where that pays
            read_s = stock.reading_s(before) if before else 0.0
            read_s += min(stock.bare_s, stock.idle_s * 2) + tokens * stock.token_s
        else:
            read_s = stock.reading_s(before + tokens)
        wait_s = under_way_s + max(read_s, for_slot_s + stock.reading_s(tokens))
        alone_s = stock.idle_s + tokens * stock.token_s
        seconds = wait_s * math.exp(self._bias[group])
        speech_alone_s = self._said * stock.idle_s
        speech_s = max(stock.hold_s - stock.reading_s(self._read), speech_alone_s)
        return Expectation(max(seconds, alone_s), alone_s, speech_s, speech_alone_s)

    def submitted(self, request: Request) -> None:
        """A request was let in: it comes before those that are asked about from now on."""
        unread = self._unread_share * len(request.prompt_ids) + _missing(request.chain)
        if request.pooling is None:
            own = len(request.prompt_ids)
            request.expected_s = self.of(request.priority, own, request.prefix).seconds
        totals, group = list(self._let_in), min(request.priority, _GROUPS - 1)
        rate, at = self._rates[group]
        faded = rate * math.exp(min(at - request.arrived, 0.0) / _RATE_S)
        self._rates[group] = (faded + 1 / _RATE_S, request.arrived)
        count, before = totals[group]
        totals[group] = (count + 1, before + unread)
        self._let_in = tuple(totals)
        self._unseen.append((request.id, self._let_in))

    # The engine's thread

    def take_stock(self, now: float, newest: int) -> None:
        """Look at who waits; `newest` is the id of the last request that was taken in."""
        while self._unseen and self._unseen[0][0] <= newest:
            _, self._seen = self._unseen.popleft()
        self._stock = self._look(now)

    def began(self, request: Request, seconds: float) -> None:
        """A request got its first token so long after it came."""
        if request.expected_s is None:
            return
        group = min(request.priority, _GROUPS - 1)
        error = math.log((seconds + _SMALL_S) / (request.expected_s + _SMALL_S))
        limit = math.log(_MOST_CORRECTION)
        # What was expected has the correction of its time in it, so errors add to it.
        learnt = self._bias[group] + _CAREFUL * max(min(error, limit), -limit)
        self._bias[group] = max(min(learnt, limit), -limit)

    def ended(self, request: Request, usage: Usage) -> None:
        """A request that had a slot has ended."""
        if usage.scheduled is None or request.pooling is not None:
            return
        own = len(request.prompt_ids)
        self._unread_share += _NEWEST * (1 - request.hit / own - self._unread_share)
        self._read += _NEWEST * (own - request.hit - self._read)
        self._said += _NEWEST * (usage.completion_tokens - self._said)
        held_s = usage.finished - usage.scheduled
        before = held_s if self._hold_s is None else self._hold_s
        self._hold_s = before + _NEWEST * (held_s - before)

    def _for_slot_s(self, group: int, lacking: int, each_s: float) -> float:
        """Seconds until `lacking` slots have fallen free, one every `each_s`, if those that come
        meanwhile and are more urgent take theirs first: until ageing has made up for their class.
        """
        more_urgent = sum(rate for rate, _ in self._rates[:group])
        by_age_s = (lacking + more_urgent * group * self._ageing_s) * each_s
        left = 1 - more_urgent * each_s
        return min(lacking * each_s / left, by_age_s) if left > 0 else by_age_s

    def _look(self, now: float) -> _Stock:
        books = self._scheduler
        speakers, cost = len(books.slots.speakers), books.cost
        hold_s = self._hold_s
        if hold_s is None:
            hold_s = self._said * cost.expected_ms(books.pace.max_num_seqs) / 1000
        return _Stock(
            self._seen,
            tuple(self._ahead(group, now) for group in range(_GROUPS)),
            bool(books.slots.running),
            hold_s,
            max(books.budget.reading(speakers, urgent=False), 1),
            cost.bare_ms(speakers) / 1000,
            cost.bare_ms(0) / 1000,
            cost.token_ms / 1000,
        )

    def _ahead(self, group: int, now: float) -> _Ahead:
        books, policy = self._scheduler, self._scheduler.policy
        mine = policy.key(_Newcomer(group, now), now)
        waiting, tokens, counted = 0, 0.0, set[int]()
        for request in (*books.parked, *books.waiting, *books.slots.reading):
            if policy.key(request, now) > mine:
                continue
            waiting += request.state is not State.RUNNING
            if request.state is not State.PARKED:
                share = 1.0 if request.state is State.RUNNING else self._unread_share
                tokens += share * (len(request.tokens) - request.computed)
            fresh = [node for node in request.chain if node.id not in counted]
            tokens += _missing(fresh)
            counted.update(node.id for node in fresh)
        pace, running = books.pace, len(books.slots.running)
        slots = pace.max_num_seqs - (pace.reserved_slots if group else 0)
        free = pace.max_num_seqs - running
        if group:
            free = min(free, slots - books.slots.ordinary)
        else:  # ordinary replies lend it their slots
            free = pace.max_num_seqs - (running - books.slots.ordinary)
        return _Ahead(waiting, tokens, max(free, 0), slots)


def _missing(nodes: Iterable[Prefix]) -> int:
    """Tokens of prefix nodes that no step has read yet."""
    return sum(node.length - node.scheduled for node in nodes)
