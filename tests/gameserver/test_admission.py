"""Limits on how fast and how many."""

import time

import pytest

from gameserver.admission import Admission, Offences, TokenBucket
from gameserver.protocol import Close, Code, Refusal
from tests.gameserver.stage import settings_with


def at(monkeypatch: pytest.MonkeyPatch, moment: float) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: moment)


def test_a_bucket_lets_a_burst_through_and_then_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 100.0)
    bucket = TokenBucket(2.0, 3)
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take() == pytest.approx(0.5)
    at(monkeypatch, 100.5)
    assert bucket.take() == 0.0
    assert bucket.take() > 0
    at(monkeypatch, 1000.0)
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take() > 0


def test_what_is_larger_than_the_burst_waits_a_finite_time_and_takes_it_all() -> None:
    bucket = TokenBucket(1.0, 2)
    assert bucket.take(10) == 0.0
    assert 0 < bucket.take(10) < 3


def test_the_nth_offence_counts_only_within_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 0.0)
    offences = Offences(3, 10.0)
    assert not offences.add()
    at(monkeypatch, 9.0)
    assert not offences.add()
    at(monkeypatch, 11.0)
    assert not offences.add()
    at(monkeypatch, 12.0)
    assert offences.add()


def admission(**limits: int) -> Admission:
    return Admission(settings_with(limits=limits))


def refused(where: Admission, player: str, address: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        where.enter(player, address)
    return caught.value


def test_sessions_of_one_player_are_limited_and_given_back() -> None:
    where = admission(sessions_per_player=2)
    where.enter("ann", "10.0.0.1")
    where.enter("ann", "10.0.0.2")
    refusal = refused(where, "ann", "10.0.0.3")
    assert (refusal.code, refusal.close) == (Code.RATE_LIMITED, Close.RATE_LIMITED)
    assert (refusal.limit, refusal.actual) == (2, 3)
    where.leave("ann", "10.0.0.1")
    where.enter("ann", "10.0.0.3")
    assert where.sessions == 2


def test_sessions_of_one_address_are_limited_unless_many_share_it() -> None:
    where = admission(sessions_per_ip=1)
    where.enter("ann", "10.0.0.1")
    assert refused(where, "bob", "10.0.0.1").close == Close.RATE_LIMITED
    for name in ("cy", "dee"):
        where.enter(name, "127.0.0.1")
        where.enter(name, "::1")


def test_a_full_node_says_so() -> None:
    where = admission(sessions=1)
    where.enter("ann", "10.0.0.1")
    refusal = refused(where, "bob", "10.0.0.2")
    assert (refusal.code, refusal.close) == (Code.BUSY, Close.OVERLOADED)
    assert refusal.retry_ms
    assert where.sessions == 1
