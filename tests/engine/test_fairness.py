"""Nobody waits for ever, whoever comes after him: the bound of docs/scheduling.md, per policy."""

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.loop import Engine
from engine.policy import Fair, make_policy
from engine.prefixes import Prefix
from engine.request import Request, State
from tests.engine.fakes import GREEDY, finish, make_engine

STEP_S = 0.01  # the simulated clock of `finish`, and of every step here
SLOTS, RESERVED, MOST_TOKENS, AGEING_S = 3, 1, 6, 0.5
#: Until no later arrival goes first, in times of `ageing_s`, for a request of class 2.
SEALED_AFTER = {"priority": 2.0, "fifo": 0.0, "elastic": 1.0, "fair": 4.0}
#: A request reads in one step here, speaks for `MOST_TOKENS`, and pauses for as many at most.
HOLD_S = 2 * (1 + MOST_TOKENS) * STEP_S


def crowd(policy: str) -> tuple[Engine, list[float]]:
    engine, _, clock = make_engine(
        blocks=256,
        max_num_seqs=SLOTS,
        reserved_slots=RESERVED,
        scheduling_policy=policy,
        ageing_s=AGEING_S,
        max_waiting=12,
    )
    return engine, clock


def say(engine: Engine, priority: int, tokens: int, name: str) -> Request:
    params = replace(GREEDY, max_tokens=tokens)
    return engine.submit([7, 8], params, priority=priority, salt=name, shares=(name, "scene"))


@pytest.mark.parametrize("policy", SEALED_AFTER)
@settings(max_examples=25, deadline=None)
@given(
    before=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, MOST_TOKENS)), min_size=0, max_size=11
    ),
    talkative=st.booleans(),
    seed=st.integers(0, 2**32),
    rate=st.floats(0.3, 1.0),
)
def test_an_ambient_request_is_served_in_bounded_time_whatever_comes_after_it(
    policy: str, before: list[tuple[int, int]], talkative: bool, seed: int, rate: float
) -> None:
    """Quest-givers keep coming as fast as the queue takes them, of fresh players each."""
    engine, clock = crowd(policy)
    chance = random.Random(seed)
    if talkative:  # the player has been served before, and the others never were
        for _ in range(4):
            say(engine, 2, MOST_TOKENS, "ann")
            finish(engine, clock)
    for number, (priority, tokens) in enumerate(before):
        say(engine, priority, tokens, f"early {number}")
    ambient = say(engine, 2, MOST_TOKENS, "ann")
    arrived, ahead = clock[0], None
    scheduler = engine._scheduler
    sealed = arrived + SEALED_AFTER[policy] * AGEING_S
    number = 0
    while ambient.state is not State.FINISHED:
        while (
            chance.random() < rate
            and len(scheduler.waiting) + len(engine._inbox) < engine._config.max_waiting
        ):
            number += 1
            say(engine, 0, chance.randint(1, MOST_TOKENS), f"late {number}")
        if ahead is None and clock[0] >= sealed:
            opened = [*scheduler.waiting, *scheduler.slots.running, *scheduler.parked]
            ahead = len([request for request in opened if request is not ambient])
        clock[0] += STEP_S
        engine.step()
        most = sealed - arrived + ((ahead or SLOTS) + 2) * HOLD_S / (SLOTS - RESERVED)
        waited = clock[0] - arrived
        started = ambient.scheduled_at is not None
        assert started or waited <= most + 2 * STEP_S, "it has not begun"
        assert waited <= most + 3 * HOLD_S, "it has not ended"
    for request in [*scheduler.waiting, *scheduler.slots.running, *scheduler.parked]:
        engine.cancel(request)
    finish(engine, clock)
    engine.check()


def test_quest_givers_that_read_in_every_step_leave_the_others_every_other_step() -> None:
    engine, clock = crowd("priority")
    ordinary = say(engine, 1, 6, "ann")
    engine.step()
    for number in range(40):
        say(engine, 0, 1, f"quest {number}")
        clock[0] += STEP_S
        engine.step()
        if ordinary.state is State.FINISHED:
            break
    assert ordinary.state is State.FINISHED
    assert number <= 2 * 6 + 1
    finish(engine, clock)


@dataclass
class Waiter:
    arrived: float = 0.0
    priority: int = 1
    chain: tuple[Prefix, ...] = ()
    shares: tuple[str, ...] = ()


def test_whoever_has_no_account_is_not_behind_everybody_who_has() -> None:
    """Requests without a player, and prefixes that are warmed, came last for ever."""
    fair = make_policy(EngineConfig(scheduling_policy="fair"))
    player, nobody = Waiter(1e6 + 1, shares=("player", "scene")), Waiter(1e6)
    fair.served(player, 50, 1e6)
    assert fair.key(nobody, 1e6 + 2) < fair.key(player, 1e6 + 2)


def test_accounts_of_very_many_players_are_tidied_up_rarely() -> None:
    """Sorting out all accounts at every token made a crowd of strangers quadratic."""
    fair = Fair(20.0)
    for number in range(20_000):
        fair.served(Waiter(shares=(f"player {number}", "scene")), 50, now=0.0)
    assert len(fair._accounts) == 20_001
    assert fair._tidy_at > 20_000
    for number in range(20_001):
        fair.served(Waiter(shares=(f"new {number}", "scene")), 50, now=1000.0)
    assert len(fair._accounts) < 25_000
