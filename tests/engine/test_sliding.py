"""Endless dialogues: who outgrows its room keeps its prefix, its first and its last tokens."""

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from engine.config import EngineConfig
from engine.errors import ContextExceeded, NoRoom
from engine.params import SamplingParams
from engine.request import Request
from engine.sliding import Sliding
from tests.engine.fakes import GREEDY, expected, expected_sliding, finish, make_engine
from tests.engine.test_scheduler import SCENE, SchedulerMachine, texts

#: In blocks of 4: one block of sinks, a window of 16 tokens, moved by 4. Room for 24.
SLIDING = Sliding(4, 16, 4)
WINDOW = {"sliding_window": 15, "sink_tokens": 3}


def for_ever(count: int) -> SamplingParams:
    return dataclasses.replace(GREEDY, max_tokens=count)


def test_sizes_are_whole_blocks() -> None:
    assert Sliding.of(EngineConfig(block_size=4, **WINDOW)) == SLIDING  # type: ignore[arg-type]
    assert Sliding.of(EngineConfig(block_size=16, sliding_window=1, sink_tokens=0)) == Sliding(
        0, 16, 16
    )
    assert Sliding.of(EngineConfig()) is None
    for wrong in ({"sliding_window": 0}, {"sink_tokens": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            EngineConfig(**wrong)


def test_a_reply_outgrows_model_and_pool() -> None:
    """Ten times the pool and the longest context: the same few blocks all along."""
    engine, runner, clock = make_engine(blocks=16, max_model_len=60, **WINDOW)
    scene = engine.create_prefix(SCENE)
    request = engine.submit([40, 41], for_ever(600), prefix=scene)
    outputs = finish(engine, clock)
    assert texts(outputs, request) == expected_sliding(SCENE, [40, 41], 600, SLIDING)
    highest = max(s.start + len(s.tokens) for p in runner.steps for s in p.sequences)
    assert highest == len(SCENE) + SLIDING.room
    assert max(len(s.segments[-1].blocks) for p in runner.steps for s in p.sequences) == 8
    assert len(request.tokens) <= SLIDING.room + 1, "what was let go is forgotten"
    usage = next(o.usage for o in outputs if o.finish)
    assert usage is not None
    assert usage.completion_tokens == 600
    assert engine.gauges["blocks_held"] == 0


def test_a_prompt_longer_than_its_room_is_read_the_same_however_it_is_cut() -> None:
    prompt = list(range(100, 190))
    for rows in (12, 24, 80):
        engine, _, clock = make_engine(max_num_batched_tokens=rows, **WINDOW)
        request = engine.submit(prompt, for_ever(30))
        assert texts(finish(engine, clock), request) == expected_sliding([], prompt, 30, SLIDING)


def test_who_fits_is_as_without_a_window() -> None:
    """And shares its history as ever."""
    engine, _, clock = make_engine(**WINDOW)
    prompt = list(range(100, 118))
    for hit in (0, 16):
        request = engine.submit(prompt, GREEDY)  # 18 + 6 tokens: just fits
        outputs = finish(engine, clock)
        assert texts(outputs, request) == expected(prompt, 6)
        usage = next(o.usage for o in outputs if o.finish)
        assert usage is not None
        assert usage.cached_tokens == hit


def test_history_of_one_that_never_slid_is_found_and_copied_by_one_that_may() -> None:
    """What may move later is nobody else's: only whole blocks of sinks are shared."""
    engine, runner, clock = make_engine(**WINDOW)
    prompt = list(range(100, 120))
    first = engine.submit(prompt, for_ever(4))
    finish(engine, clock)
    second = engine.submit(prompt, for_ever(100))
    third = engine.submit(prompt, for_ever(100))
    outputs = finish(engine, clock)
    for request in (second, third):
        assert texts(outputs, request) == expected_sliding([], prompt, 100, SLIDING)
    assert (first.hit, second.hit, third.hit) == (0, 19, 19)
    assert sum(len(plan.copies) for plan in runner.steps) == 2 * 4
    again = engine.submit(prompt, for_ever(4))
    assert texts(finish(engine, clock), again) == expected(prompt, 4)
    assert again.hit == 19, "the history stayed true while others slid"


def test_history_of_one_that_slid_is_not_taken_for_its_tokens() -> None:
    """Behind the sinks its KV was computed without what it had let go."""
    engine, _, clock = make_engine(**WINDOW)
    prompt = list(range(100, 110))
    request = engine.submit(prompt, for_ever(60))
    said = texts(finish(engine, clock), request)
    for whole in ([*prompt, *said[:8]], request.tokens[:20]):
        follower = engine.submit(whole, for_ever(2))
        assert texts(finish(engine, clock), follower) == expected(whole, 2)
        assert follower.hit == SLIDING.sinks


def test_an_unfinished_reply_leaves_its_history_if_it_never_slid() -> None:
    engine, _, clock = make_engine(**WINDOW)
    prompt = list(range(100, 112))
    request = engine.submit(prompt, for_ever(10_000))
    for _ in range(6):
        engine.step()
    engine.cancel(request)
    finish(engine, clock)
    again = engine.submit([*prompt, *request.tokens[12:14], 7], for_ever(3))
    finish(engine, clock)
    assert again.hit == 12


@pytest.mark.parametrize("length", [3, 20, 40])
def test_samples_of_one_prompt_slide_apart(length: int) -> None:
    engine, _, clock = make_engine(max_num_seqs=5, **WINDOW)
    prompt = list(range(100, 100 + length))
    first = engine.submit(prompt, for_ever(80))
    others = [engine.submit(prompt, for_ever(80), sibling=first) for _ in range(2)]
    outputs = finish(engine, clock)
    for request in (first, *others):
        assert texts(outputs, request) == expected_sliding([], prompt, 80, SLIDING)


def test_one_that_lost_its_kv_reads_what_it_remembers() -> None:
    """A slid reply whose memory a quest-giver took goes on from its sinks and its window."""
    engine, _, clock = make_engine(
        blocks=13, max_num_seqs=2, reserved_slots=0, max_model_len=52, **WINDOW
    )
    victim = engine.submit([1] * 8, for_ever(60), salt="a")
    outputs = []
    for _ in range(40):
        outputs += engine.step()
    assert victim.slid
    engine.submit([9] * 8, for_ever(12), priority=0, salt="b")
    engine.submit([8] * 8, for_ever(12), priority=0, salt="c")
    outputs += finish(engine, clock)
    assert engine.gauges["preemptions"] >= 1
    assert texts(outputs, victim) == expected_sliding([], [1] * 8, 60, SLIDING)


def test_a_prefix_that_leaves_no_room_for_the_window_is_refused() -> None:
    engine, _, _ = make_engine(max_model_len=50, **WINDOW)
    scene = engine.create_prefix(SCENE)
    with pytest.raises(ContextExceeded) as refused:
        engine.submit([1], for_ever(1000), prefix=scene)
    assert (refused.value.limit, refused.value.actual) == (50, 54)
    engine.submit([1], for_ever(19), prefix=scene)


def test_a_refusal_names_the_room_and_not_the_length() -> None:
    engine, _, clock = make_engine(blocks=10, **WINDOW)
    engine.warm(engine.create_prefix(SCENE), lambda error: None)  # 8 blocks
    finish(engine, clock)
    with pytest.raises(NoRoom) as refused:
        engine.submit([1], for_ever(1000))
    assert (refused.value.required, refused.value.available) == (6, 2), "in blocks"


def test_noise_does_not_come_again_with_the_positions() -> None:
    engine, _, _ = make_engine(**WINDOW)
    request = engine.submit([1, 2], dataclasses.replace(for_ever(200), seed=5))
    seeds = set()
    while engine.has_work:
        seeds.add((request.seed, len(request.tokens)))
        engine.step()
    assert len(seeds) == 200, "a (seed, position) for every token"


class SlidingMachine(SchedulerMachine):
    """The same storms with a window that most requests outgrow."""

    @initialize(
        policy=st.sampled_from(["fifo", "priority", "fair", "elastic"]),
        parking=st.booleans(),
        window=st.sampled_from([1, 5, 8]),
        sinks=st.sampled_from([0, 2, 8]),
    )
    def make(self, policy: str, parking: bool, window: int, sinks: int) -> None:
        changes = {"sliding_window": window, "sink_tokens": sinks}
        self.engine, self.runner, self.clock = make_engine(
            blocks=40, max_waiting=20, scheduling_policy=policy, parking=parking, **changes
        )
        self.sliding = Sliding.of(EngineConfig(block_size=4, **changes))  # type: ignore[arg-type]

    def expected(self, request: Request, prompt: list[int], count: int) -> list[int]:
        prefix = prompt[: request.base]
        assert self.sliding is not None
        return expected_sliding(prefix, prompt[request.base :], count, self.sliding)


SlidingMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSlidingMachine = SlidingMachine.TestCase
