"""What the game promises when twice as many turns are asked for as the machine can answer.

The whole server but for its sockets, on a simulated device and clock: nothing depends on the
machine this runs on, and no figure here is a measurement of one.
"""

from functools import cache

import pytest

from benchmarks.overload import OFF, capacity, play, wait
from benchmarks.overload_stage import Outcome, settings_of
from engine.pace import Pace
from engine.percentile import percentile
from gameserver.overload.ladder import Level

SECONDS = 15.0


@cache
def most() -> float:
    return capacity(10.0)


@cache
def at(load: float, *, off: bool = False) -> Outcome:
    return play(load * most(), SECONDS, 1, OFF if off else {})


def seconds(outcome: Outcome, name: str, percent: int) -> float:
    found = wait(outcome.classes[name].waits, percent)
    assert found is not None
    return found


def test_below_capacity_nothing_is_left_out_and_nobody_refused() -> None:
    outcome = at(0.5)
    assert set(outcome.seconds) == {Level.NORMAL}
    assert outcome.classes["player"].barked == 0
    assert outcome.classes["player"].refused_share <= 0.01
    assert seconds(outcome, "player", 99) <= 0.3


def test_quest_givers_keep_their_latency_at_twice_what_the_machine_can_do() -> None:
    calm, twice, unprotected = at(0.5), at(2.0), at(2.0, off=True)
    assert seconds(twice, "quest", 50) <= 0.1
    # One whose NPC answers somebody else waits for the end of a sentence; the others go first.
    assert seconds(twice, "quest", 99) <= 0.5
    assert percentile(twice.classes["quest"].free_waits, 99) <= 0.15
    assert seconds(twice, "quest", 50) <= 3 * seconds(calm, "quest", 50)
    assert seconds(twice, "quest", 99) < seconds(unprotected, "quest", 99)
    assert twice.classes["quest"].refused_share <= 0.02
    assert twice.classes["quest"].barked == 0


@pytest.mark.parametrize("load", [1.0, 1.5, 2.0, 4.0])
def test_every_background_turn_that_begins_meets_the_ageing_bound(load: float) -> None:
    """docs/scheduling.md: a + Z + (N + 2) · H ÷ (S − R), with the queue as long as it may be."""
    settings = settings_of()
    engine, pace = settings.engine, Pace.of(settings.engine)
    longest_step_s, prompt_steps, longest_reply = 0.1, 4, 60
    hold_s = (prompt_steps + longest_reply) * 2 * longest_step_s
    those_before = engine.max_waiting + pace.max_num_seqs
    bound = 2 * engine.ageing_s
    bound += (those_before + 2) * hold_s / (pace.max_num_seqs - pace.reserved_slots)
    waits = at(load).classes["ambient"].waits
    assert waits
    assert max(waits) <= bound
    # In practice ageing alone, and the turn of those who have waited as long.
    assert max(waits) <= 3 * engine.ageing_s
    assert max(waits) <= settings.overload.background_first_word_s


@pytest.mark.parametrize("load", [1.5, 2.0, 4.0])
def test_npcs_that_nobody_speaks_to_go_on_speaking_now_and_then(load: float) -> None:
    """From the level that keeps them quiet on, they have one in so many turns."""
    outcome, share = at(load), settings_of().overload.background_share
    assert outcome.usual_level >= Level.QUIET
    assert outcome.ambient_per_s >= 0.9 * share * outcome.turns_per_s
    assert outcome.silence_s <= settings_of().engine.ageing_s


@pytest.mark.parametrize("load", [1.5, 2.0, 4.0])
def test_who_is_let_in_hears_a_first_word_when_it_was_promised(load: float) -> None:
    promised = settings_of().overload.first_word_s
    outcome = at(load)
    assert seconds(outcome, "player", 50) <= promised / 1.2
    assert seconds(outcome, "player", 99) <= promised
    if load == 2.0:
        assert seconds(at(load, off=True), "player", 50) > promised


def test_the_level_holds_and_the_machine_stays_busy() -> None:
    outcome = at(2.0)
    assert outcome.usual_level >= Level.QUIET
    assert len(outcome.levels) <= 6, "it climbs and stays"
    assert outcome.turns_per_s >= 0.8 * most()


def test_a_run_is_the_same_every_time() -> None:
    runs = [play(40, 3.0, 5) for _ in range(2)]
    assert runs[0].classes["player"].waits == pytest.approx(runs[1].classes["player"].waits)
    assert runs[0].levels == runs[1].levels
