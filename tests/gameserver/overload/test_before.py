"""What an NPC has to say first delays the line that comes now."""

from engine.forecast import UNKNOWN, Expectation
from gameserver.overload.before import NOTHING, Before

EACH = Expectation(seconds=2.0, alone_s=0.1, speech_s=1.5, speech_alone_s=0.5)


def delay(before: Before) -> tuple[float, float]:
    found = before.delays(EACH)
    return round(found.seconds, 6), round(found.alone_s, 6)


def test_an_npc_that_is_free_delays_nobody() -> None:
    assert delay(NOTHING) == (2.0, 0.1)


def test_each_line_that_waits_takes_its_wait_and_its_speech() -> None:
    assert delay(Before(lines=2)) == (2.0 + 2 * 3.5, 0.1 + 2 * 0.6)


def test_a_turn_that_goes_on_takes_what_is_left_of_it() -> None:
    assert delay(Before(asked_s=0.5)) == (2.0 + 1.5 + 1.5, 0.1 + 0.075 + 0.5)
    assert delay(Before(asked_s=9.0)) == (2.0 + 1.5, 0.1 + 0.5)
    assert delay(Before(asked_s=9.0, speaks_s=0.3)) == (2.0 + 1.2, 0.1 + 0.4)
    assert delay(Before(asked_s=9.0, speaks_s=7.0)) == (2.0, 0.1)


def test_an_engine_that_cannot_tell_delays_nobody() -> None:
    assert Before(lines=9, asked_s=1.0).delays(UNKNOWN) == UNKNOWN
