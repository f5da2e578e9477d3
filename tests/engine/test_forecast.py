"""What a request may expect: predictions on a device that only passes the time, held to what came.

The real engine on a simulated clock, so nothing depends on the machine this runs on.
"""

import random
from statistics import median

import pytest

from benchmarks.simulated import DEVICES, SimulatedStage
from engine.config import EngineConfig
from engine.measures import Buckets
from engine.params import SamplingParams
from engine.percentile import percentile
from engine.prefixes import Prefix
from tests.engine.fakes import GREEDY, make_engine

#: Tokens of a line's prompt and mean tokens of a reply; lines a second that two cores can serve.
TURN, OUT, CAPACITY = 48, 32, 9.0


def stage_with_persona() -> tuple[SimulatedStage, Prefix]:
    stage = SimulatedStage(DEVICES["cpu"], EngineConfig(device="cpu", max_waiting=4096))
    return stage, stage.engine.create_prefix(range(100, 500))


def play(load: float, seconds: float, seed: int = 0) -> dict[int, list[float]]:
    """Predicted ÷ actual seconds of all lines that came after a while, by class."""
    chance, (stage, persona) = random.Random(seed), stage_with_persona()
    engine, clock = stage.engine, stage.clock
    asked: dict[int, tuple[int, float, float]] = {}
    ratios: dict[int, list[float]] = {0: [], 1: [], 2: []}
    due = 0.0
    while clock() < seconds or engine.has_work:
        while due <= clock() and due < seconds:
            priority = chance.choices((0, 1, 2), (2, 6, 2))[0]
            ids = [chance.randrange(100, 32000) for _ in range(TURN)]
            out = chance.randrange(OUT // 2, 3 * OUT // 2)
            params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=True)
            expected = engine.forecast.of(priority, len(ids), persona).seconds
            request = engine.submit(ids, params, prefix=persona, priority=priority)
            asked[request.id] = (priority, clock(), expected)
            due += chance.expovariate(load * CAPACITY)
        if not engine.has_work:
            clock.rest(due)
            continue
        for output in engine.step():
            if output.request_id in asked and output.token_ids:
                priority, came, expected = asked.pop(output.request_id)
                if came > seconds / 4:  # by then it has learnt
                    ratios[priority].append(expected / (clock() - came))
    return ratios


@pytest.mark.parametrize("load", [0.5, 1.0, 2.0])
def test_most_predictions_are_within_a_factor_of_two(load: float) -> None:
    for priority, ratios in play(load, 60).items():
        assert len(ratios) >= 30
        assert 0.8 <= median(ratios) <= 1.25, f"class {priority}"
        near = sum(0.5 <= ratio <= 2 for ratio in ratios)
        assert near / len(ratios) >= 0.9, f"class {priority}"


def test_where_everybody_waits_long_predictions_are_close() -> None:
    """These are the ones that lines are refused by."""
    ratios = play(3.0, 40)[1]
    assert 0.8 <= median(ratios) <= 1.25
    assert percentile(ratios, 5) >= 0.75
    assert percentile(ratios, 95) <= 1.33


def test_who_was_read_since_the_last_look_is_not_waited_for() -> None:
    stage, persona = stage_with_persona()
    engine = stage.engine
    engine.submit([1] * TURN, GREEDY, prefix=persona)
    while engine.has_work:
        engine.step()
    long = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    engine.submit([2] * TURN, long, prefix=persona)
    engine.step()
    behind_one = engine.forecast.of(1, TURN, persona).seconds
    engine.submit([3] * TURN, long, prefix=persona)
    engine.step()
    assert engine.forecast.of(1, TURN, persona).seconds < 1.1 * behind_one


def test_of_many_that_come_at_once_each_is_told_of_those_before_it() -> None:
    stage, persona = stage_with_persona()
    engine = stage.engine
    for number in range(32):  # it learns what steps and replies take
        engine.submit([number] * TURN, GREEDY, prefix=persona)
    while engine.has_work:
        engine.step()
    expected = []
    for number in range(64):
        expected.append(engine.forecast.of(1, TURN, persona).seconds)
        engine.submit([100 + number] * TURN, GREEDY, prefix=persona)
    assert expected == sorted(expected)
    assert expected[-1] > 3 * expected[0]
    before = engine.forecast.of(1, TURN, persona).seconds
    engine._take_in()
    engine.forecast.take_stock(stage.clock(), engine._scheduler.newest)
    told = engine.forecast.of(1, TURN, persona).seconds
    assert told == pytest.approx(before), "counted once, not twice"


def test_quest_givers_expect_to_wait_for_nobody_behind_them() -> None:
    stage, persona = stage_with_persona()
    for number in range(64):
        stage.engine.submit([100 + number] * TURN, GREEDY, prefix=persona)
    forecast = stage.engine.forecast
    quest, player, ambient = (forecast.of(p, TURN, persona).seconds for p in (0, 1, 2))
    assert quest < player / 2
    assert player <= ambient


def test_an_idle_engine_is_waited_for_by_nobody() -> None:
    stage, persona = stage_with_persona()
    stage.engine.submit([100] * TURN, GREEDY, prefix=persona)
    while stage.engine.has_work:
        stage.engine.step()
    found = stage.engine.forecast.of(1, TURN, persona)
    assert found.seconds <= 2.5 * found.alone_s


def test_a_cold_scene_is_expected_to_be_read() -> None:
    stage, persona = stage_with_persona()
    cold = stage.engine.forecast.of(1, TURN, persona)
    assert cold.alone_s > stage.engine.forecast.of(1, TURN).alone_s


def test_accuracy_is_measured_for_each_class() -> None:
    engine, _, clock = make_engine()
    engine.submit([1, 2, 3], GREEDY, priority=2)
    while engine.has_work:
        clock[0] += 0.01
        engine.step()
    counts = {s.group: s.buckets for s in engine.measures() if "forecast" in s.name}
    assert _number(counts["2"]) == 1
    assert _number(counts["1"]) == 0


def _number(buckets: Buckets) -> int:
    return sum(buckets.counts)
