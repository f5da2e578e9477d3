"""A profile adds up, can be read by people and by Perfetto, and costs nothing when it is off."""

import json
from pathlib import Path

import pytest

from engine.profile import MOST_SPANS, Profile, no_span
from tests.engine.fakes import GREEDY, expected, finish, make_engine
from tests.engine.test_overlap import make
from tests.engine.test_scheduler import SCENE, texts


class Clock:
    """Every look takes a millisecond."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def test_parts_add_up_and_classes_are_told_apart() -> None:
    engine, _, clock = make_engine()
    profile = Profile(Clock())
    engine.attach(profile)
    scene = engine.create_prefix(SCENE)
    requests = [engine.submit([40 + n], GREEDY, prefix=scene, priority=n % 2) for n in range(4)]
    outputs = finish(engine, clock)
    assert texts(outputs, requests[0]) == expected([*SCENE, 40], 6)
    parts = profile._parts
    whole = parts["step",]
    assert whole.count == engine.gauges["steps"]
    inner = [parts["step", name] for name in ("take in", "plan", "forward", "deliver")]
    assert {part.count for part in inner} == {whole.count}
    assert sum(part.seconds for part in inner) <= whole.seconds
    assert sum(kind.count for kind in profile._steps.values()) == whole.count
    assert {name: total.count for name, total in profile._first.items()} == {0: 2, 1: 2}
    report = profile.report()
    for word in ("forward", "deliver", "class 0", "class 1", "reading", "speaking", "p99 ms"):
        assert word in report


def test_a_step_under_way_has_parts_of_its_own() -> None:
    engine, _, clock = make()
    profile = Profile(Clock())
    engine.attach(profile)
    engine.submit([1, 2], GREEDY)
    finish(engine, clock)
    assert {path[-1] for path in profile._parts} >= {"launch", "wait", "deliver", "plan"}


def test_the_trace_nests_and_is_read_back(tmp_path: Path) -> None:
    engine, _, clock = make_engine()
    profile = Profile(Clock())
    engine.attach(profile)
    engine.submit([1, 2, 3], GREEDY)
    finish(engine, clock)
    trace = profile.write(tmp_path / "run.txt")
    assert "6 steps in" in (tmp_path / "run.txt").read_text()
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [event for event in events if event["name"] == "step"]
    assert [step["args"]["rows"] for step in steps] == [3, 1, 1, 1, 1, 1]
    for event in events:
        assert event["ph"] == "X"
        assert event["dur"] > 0
        if event["name"] == "forward":
            assert any(
                step["ts"] <= event["ts"]
                and event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 0.2
                for step in steps
            )


def test_a_long_run_keeps_totals_and_the_first_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.profile.MOST_SPANS", 10)
    profile = Profile(Clock())
    for _ in range(50):
        with profile.span("step"), profile.span("plan"):
            pass
    assert len(profile.trace()["traceEvents"]) == 10  # type: ignore[arg-type]
    assert profile._parts["step", "plan"].count == 50
    assert "first 10 spans only" in profile.report()
    assert MOST_SPANS > 100_000


def test_an_empty_run_has_a_report_too() -> None:
    assert "0 steps" in Profile(Clock()).report()


def test_without_a_profile_spans_are_one_shared_nothing() -> None:
    engine, _, _ = make_engine()
    assert engine._span is no_span
    assert no_span("step") is no_span("plan")
