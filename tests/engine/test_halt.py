"""The kill switch of the engine: nothing speaks after one step, and nothing begins."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Halted
from engine.loop import Engine
from engine.overlap import OverlapEngine
from engine.pooling import Pooling
from tests.engine.fakes import GREEDY, expected, finish, make_engine
from tests.engine.test_overlap import make as make_overlapping

LONG = replace(GREEDY, max_tokens=30)


def engine_of(kind: type[Engine]) -> tuple[Engine, list[float]]:
    engine, _, clock = make_engine() if kind is Engine else make_overlapping()
    return engine, clock


@pytest.mark.parametrize("kind", [Engine, OverlapEngine])
@given(steps=st.integers(0, 12), urgent=st.integers(0, 3), late=st.booleans())
def test_the_engine_is_empty_after_one_step_and_every_request_has_one_end(
    kind: type[Engine], steps: int, urgent: int, late: bool
) -> None:
    """Whether they wait, read, speak, are parked, or are only read."""
    engine, clock = engine_of(kind)
    scene = engine.create_prefix(range(10))
    requests = [engine.submit([20 + n, 30], LONG, prefix=scene, salt=str(n)) for n in range(6)]
    outputs = []
    for _ in range(steps):
        clock[0] += 0.01
        outputs += engine.step()
    requests += [engine.submit([n + 1], LONG, priority=0) for n in range(urgent)]
    if late:
        outputs += engine.step()
    engine.halt()
    outputs += engine.step()
    assert not engine.has_work
    ends = [output for output in outputs if output.finish is not None]
    assert sorted(end.request_id for end in ends) == sorted(request.id for request in requests)
    assert {end.finish for end in ends} == {"cancelled"}
    assert engine.gauges["blocks_held"] == 0
    engine.check()


@pytest.mark.parametrize("kind", [Engine, OverlapEngine])
def test_nothing_begins_until_it_is_released(kind: type[Engine]) -> None:
    engine, clock = engine_of(kind)
    engine.halt()
    engine.halt()
    for _ in range(2):
        with pytest.raises(Halted) as raised:
            engine.submit([1, 2], GREEDY)
        with pytest.raises(Halted):
            engine.embed([1, 2], Pooling("mean", normalize=True))
        engine.step()
        assert not engine.has_work
    assert raised.value.retry_ms > 0
    engine.release()
    request = engine.submit([1, 2], GREEDY)
    tokens = [t for o in finish(engine, clock) if o.request_id == request.id for t in o.token_ids]
    assert tokens == expected([1, 2], 6)
    assert engine.gauges["refused_halted"] == 4


def test_a_halt_that_is_released_at_once_ends_what_ran_and_nothing_that_came_after() -> None:
    engine, clock = engine_of(Engine)
    before = engine.submit([1, 2], GREEDY)
    engine.halt()
    engine.release()
    after = engine.submit([3, 4], GREEDY)
    ends = {o.request_id: o.finish for o in finish(engine, clock) if o.finish is not None}
    assert ends == {before.id: "cancelled", after.id: "length"}
