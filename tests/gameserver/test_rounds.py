"""Each is looked at in the first round after the time that was asked for, and in no other."""

import random

import pytest

from gameserver.rounds import Rounds


def test_nobody_is_looked_at_early_or_late_whatever_was_asked_for() -> None:
    dice = random.Random(1)
    now = 1000.0
    rounds = Rounds[int](now, 0.25)
    wanted: dict[int, float] = {}
    seen = 0
    for _ in range(4000):
        who = dice.randrange(300)
        if dice.random() < 0.1:
            rounds.forget(who)
            wanted.pop(who, None)
        else:
            at = now + dice.choice((-5.0, 0.0, 0.1, 0.25, 3.0, 70.0)) * dice.random()
            rounds.look(who, at)
            wanted[who] = max(at, now)
        if dice.random() < 0.3:
            now += dice.choice((0.01, 0.25, 2.0)) * dice.random()
            for found in rounds.due(now):
                assert wanted.pop(found) <= now
                seen += 1
            assert all(at > now - 0.25 for at in wanted.values())
    assert seen > 500
    assert len(rounds) == len(wanted)
    assert sorted(rounds.due(now + 100)) == sorted(wanted)
    assert len(rounds) == 0


def test_who_asks_again_is_looked_at_once() -> None:
    rounds = Rounds[str](0.0, 1.0)
    rounds.look("ann", 5.0)
    rounds.look("ann", 2.0)
    rounds.look("bob", 2.0)
    rounds.look("bob", 5.0)
    assert rounds.due(2.0) == ["ann"]
    assert rounds.due(4.9) == []
    assert rounds.due(60.0) == ["bob"]


def test_who_is_forgotten_is_not_kept() -> None:
    rounds = Rounds[str](0.0, 1.0)
    rounds.look("ann", 5.0)
    rounds.forget("ann")
    rounds.forget("ann")
    assert len(rounds) == 0
    assert rounds.due(10.0) == []


@pytest.mark.parametrize("ahead", [0.0, -100.0])
def test_who_is_to_be_looked_at_now_has_to_wait_for_the_next_round(ahead: float) -> None:
    rounds = Rounds[str](50.0, 1.0)
    rounds.look("ann", 50.0 + ahead)
    assert rounds.due(50.5) == []
    assert rounds.due(51.0) == ["ann"]
