"""Who is asked next, and how long those are left alone who failed."""

from engine.remote.client import Trouble
from engine.remote.config import RemoteConfig
from engine.remote.servers import Servers

URLS = ("http://a", "http://b", "http://c")
CUT = Trouble("cut", "cut")


def servers(**settings: object) -> Servers:
    usual = {"failures": 3, "backoff_s": 1.0, "backoff_most_s": 5.0, "retry_after_most_s": 60.0}
    return Servers(URLS, RemoteConfig(urls=URLS, **{**usual, **settings}))  # type: ignore[arg-type]


def test_the_one_with_least_to_do_is_asked_and_equals_take_turns() -> None:
    some = servers()
    assert [some.choose(0.0) for _ in range(4)] == [*some.all, some.all[0]]
    some.all[1].asked = some.all[0].asked = 1
    assert some.choose(0.0) is some.all[2]


def test_every_failure_in_a_row_doubles_the_rest_up_to_a_bound() -> None:
    some = servers(failures=99)
    server, rests = some.all[0], []
    for _ in range(5):
        some.troubled(server, CUT, 100.0)
        rests.append(server.resting_until - 100.0)
    assert rests == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert server not in {some.choose(100.0) for _ in range(6)}
    assert server in {some.choose(105.0) for _ in range(6)}


def test_an_answer_ends_the_row() -> None:
    some = servers()
    server = some.all[0]
    for _ in range(5):
        assert not some.troubled(server, CUT, 0.0)
        assert not some.troubled(server, CUT, 0.0)
        some.answered(server)
    assert not server.down


def test_who_fails_too_often_is_down_until_it_is_back_and_that_is_said_once() -> None:
    some = servers()
    server = some.all[0]
    assert [some.troubled(server, CUT, 0.0) for _ in range(5)] == [False, False, True, False, False]
    assert server not in {some.choose(1e9) for _ in range(6)}
    some.back(server)
    assert server in {some.choose(0.0) for _ in range(6)}


def test_who_is_busy_is_left_in_peace_as_long_as_it_says_and_is_not_to_blame() -> None:
    some = servers(failures=1)
    one, two, three = some.all
    for server, retry_s in ((one, 20.0), (two, None), (three, 1e6)):
        trouble = Trouble("busy", "busy", blame=False, retry_s=retry_s)
        assert not some.troubled(server, trouble, 0.0)
    assert [server.resting_until for server in some.all] == [20.0, 1.0, 60.0]
    assert some.next_at() == 1.0


def test_while_all_are_down_nobody_is_expected() -> None:
    some = servers(failures=1)
    for server in some.all:
        some.troubled(server, CUT, 0.0)
    assert some.choose(1e9) is None
    assert some.next_at() == float("inf")
    assert 0 < some.unavailable(0.0).retry_ms <= 5000
