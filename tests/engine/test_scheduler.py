"""Scheduling promises: order, sharing, memory, cancellation; none depends on a model."""

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from engine.decoding.sampling import Sampled
from engine.errors import ContextExceeded, InvalidRequest, NoRoom, OutOfMemory, QueueFull
from engine.loop import Engine
from engine.outputs import RequestOutput
from engine.params import SamplingParams
from engine.prefixes import Prefix
from engine.request import Request, State
from tests.engine.fakes import EOS, GREEDY, CheckingRunner, expected, finish, make_engine

SCENE = list(range(30))


def texts(outputs: list[RequestOutput], request: Request) -> list[int]:
    return [t for o in outputs if o.request_id == request.id for t in o.token_ids]


def last(outputs: list[RequestOutput], request: Request) -> RequestOutput:
    ends = [o for o in outputs if o.request_id == request.id and o.finish is not None]
    assert len(ends) == 1, "exactly one end"
    return ends[0]


def test_simultaneous_arrivals_compute_a_scene_once() -> None:
    engine, runner, clock = make_engine(blocks=200)
    scene = engine.create_prefix(SCENE)
    requests = [engine.submit([40 + i, 41], GREEDY, prefix=scene) for i in range(32)]
    outputs = finish(engine, clock)
    assert runner.rows_of_node == {scene.id: len(SCENE)}
    assert engine.gauges["prefill_tokens_computed"] == len(SCENE) + 2 * 32
    assert engine.gauges["prefill_tokens_ideal"] == len(SCENE) + 2 * 32
    for i, request in enumerate(requests):
        assert texts(outputs, request) == expected([*SCENE, 40 + i, 41], 6)
    cached = [last(outputs, r).usage.cached_tokens for r in requests]  # type: ignore[union-attr]
    assert sorted(cached) == [0] + [len(SCENE)] * 31, "all but the leader joined in flight"


def test_requests_join_a_node_in_the_step_that_completes_it() -> None:
    engine, runner, _ = make_engine()
    scene = engine.create_prefix(SCENE[:10])
    engine.submit([40], GREEDY, prefix=scene)
    engine.submit([41], GREEDY, prefix=scene)
    engine.step()
    assert [len(s.tokens) for s in runner.steps[0].sequences] == [10, 1, 1]


def test_equal_text_is_one_node_and_children_follow_their_parents() -> None:
    engine, runner, clock = make_engine()
    scene = engine.create_prefix(SCENE)
    assert engine.create_prefix(SCENE) is scene
    mira = engine.create_prefix([50, 51, 52], scene)
    assert mira.total == len(SCENE) + 3
    request = engine.submit([60], GREEDY, prefix=mira)
    outputs = finish(engine, clock)
    assert texts(outputs, request) == expected([*SCENE, 50, 51, 52, 60], 6)
    starts = [s.start for p in runner.steps for s in p.sequences]
    assert starts == sorted(starts), "parents are read before children"


def test_a_warmed_prefix_stays_until_it_is_released() -> None:
    engine, runner, clock = make_engine(blocks=16)
    scene = engine.create_prefix(SCENE)  # 8 blocks of 4
    done: list[OutOfMemory | None] = []
    engine.warm(scene, done.append)
    finish(engine, clock)
    assert done == [None]
    assert engine.gauges["blocks_held"] == 8
    for i in range(5):  # each needs 7 of the 8 blocks left, under its own salt
        engine.submit([70 + i] * 22, GREEDY, salt=str(i))
        finish(engine, clock)
    assert engine.gauges["blocks_held"] == 8
    engine.submit([60], GREEDY, prefix=scene)
    finish(engine, clock)
    assert runner.rows_of_node == {scene.id: len(SCENE)}, "never computed again"
    engine.release_prefix(scene)
    finish(engine, clock)
    assert engine.gauges["blocks_held"] == 0


def test_a_prefix_that_cannot_fit_beside_the_pinned_ones_is_refused_not_awaited() -> None:
    engine, _, clock = make_engine(blocks=10)
    done: list[OutOfMemory | None] = []
    engine.warm(engine.create_prefix(SCENE), done.append)
    finish(engine, clock)
    engine.warm(engine.create_prefix([9] * 20), done.append)
    with pytest.raises(NoRoom):
        engine.submit([8] * 10, GREEDY)  # needs 4 blocks, 2 are left: never
    finish(engine, clock)
    assert done[0] is None
    assert isinstance(done[1], OutOfMemory)
    assert "kv_cache_bytes" in str(done[1])


def test_two_waiting_scenes_that_block_each_other_are_resolved() -> None:
    engine, _, clock = make_engine(blocks=18, max_num_batched_tokens=80)
    one, two = engine.create_prefix(SCENE), engine.create_prefix(SCENE[::-1])  # 8 blocks each
    first = engine.submit([1] * 10, GREEDY, prefix=one)
    second = engine.submit([2] * 10, GREEDY, prefix=two)
    outputs = finish(engine, clock)
    assert last(outputs, first).finish == last(outputs, second).finish == "length"


def test_history_is_found_again_under_the_same_salt_only() -> None:
    engine, _, clock = make_engine()
    prompt = list(range(100, 122))
    for salt, hit in (("a", 0), ("b", 0), ("a", 20)):
        request = engine.submit(prompt, GREEDY, salt=salt)
        outputs = finish(engine, clock)
        assert last(outputs, request).usage.cached_tokens == hit  # type: ignore[union-attr]
        assert texts(outputs, request) == expected(prompt, 6)


def test_a_fully_cached_prompt_copies_its_last_block_before_writing() -> None:
    engine, runner, clock = make_engine()
    prompt = list(range(100, 116))  # exactly four blocks
    engine.submit(prompt, GREEDY)
    finish(engine, clock)
    request = engine.submit(prompt, GREEDY)
    outputs = finish(engine, clock)
    assert last(outputs, request).usage.cached_tokens == 15  # type: ignore[union-attr]
    assert texts(outputs, request) == expected(prompt, 6)
    assert sum(len(plan.copies) for plan in runner.steps) == 1


def test_quest_givers_take_reserved_slots() -> None:
    engine, _, clock = make_engine()  # 4 slots, 1 reserved
    long = dataclasses.replace(GREEDY, max_tokens=50)
    ordinary = [engine.submit([i], long) for i in range(4)]
    for _ in range(4):
        engine.step()
    assert engine.gauges["running"] <= 3
    quest = engine.submit([9], long, priority=0)
    outputs = engine.step()
    assert texts(outputs, quest), "first token in the next step, with all ordinary slots taken"
    assert not texts(outputs, ordinary[3])
    finish(engine, clock)


def test_classes_go_first_but_ageing_bounds_the_wait() -> None:
    engine, runner, clock = make_engine(max_num_seqs=2, ageing_s=1.0)
    ambient = engine.submit([1], GREEDY, priority=2)
    for n in range(40):
        clock[0] += 0.1
        engine.submit([2, n], dataclasses.replace(GREEDY, max_tokens=1), priority=1)
        if any(s.owner is ambient for p in runner.steps for s in p.sequences):
            break
        engine.step()
    waited = clock[0]
    assert 0.9 <= waited <= 2.5, "an ambient request overtakes class 1 after about one second"
    finish(engine, clock)


def test_a_step_with_speakers_keeps_to_its_budget() -> None:
    engine, runner, clock = make_engine(max_num_batched_tokens=64, step_target_ms=10.0)
    engine.submit([1], dataclasses.replace(GREEDY, max_tokens=40))
    engine.step()
    engine.submit(list(range(60)), GREEDY, salt="other")
    finish(engine, clock)
    mixed = [p for p in runner.steps if len(p.sequences) == 2]
    assert mixed
    reading = [max(len(s.tokens) for s in p.sequences) for p in mixed]
    assert max(reading) < 60, "the long prompt was read in pieces"
    assert min(r for r in reading if r > 1) >= 1


def test_a_quest_givers_line_is_read_whole_beside_speakers_that_use_the_target_up() -> None:
    engine, runner, clock = make_engine(max_num_batched_tokens=64, step_target_ms=0.001)
    long = dataclasses.replace(GREEDY, max_tokens=40)
    for n in range(3):
        engine.submit([n], long)
    engine.step()
    engine.submit(list(range(200, 230)), long, priority=1)
    quest = engine.submit(list(range(100, 150)), long, priority=0)
    outputs = engine.step()
    assert texts(outputs, quest), "first token in the very next step"
    reading = [s for s in runner.steps[-1].sequences if len(s.tokens) > 1]
    assert [s.owner for s in reading] == [quest], "others wait for this one step"
    finish(engine, clock)


@pytest.mark.parametrize("steps_before", range(9))
def test_cancel_at_every_step_gives_everything_back(steps_before: int) -> None:
    """Queued, in the scene's prefill, in the own prefill, while speaking."""
    engine, _runner, clock = make_engine(max_num_batched_tokens=12)
    scene = engine.create_prefix(SCENE)
    victim = engine.submit(list(range(40, 60)), GREEDY, prefix=scene)
    mate = engine.submit([7, 8], GREEDY)
    outputs = []
    for _ in range(steps_before):
        outputs += engine.step()
    engine.cancel(victim)
    engine.cancel(victim)
    outputs += engine.step()
    assert last(outputs, victim).finish == "cancelled"
    outputs += finish(engine, clock)
    assert texts(outputs, mate) == expected([7, 8], 6), "nobody else is disturbed"
    assert engine.gauges["blocks_held"] == 0
    engine.check()
    again = engine.submit(list(range(40, 60)), GREEDY, prefix=scene)
    outputs = finish(engine, clock)
    assert texts(outputs, again) == expected([*SCENE, *range(40, 60)], 6)


def test_a_scene_whose_first_reader_left_is_still_read_for_the_others() -> None:
    engine, runner, clock = make_engine(max_num_batched_tokens=12)
    scene = engine.create_prefix(SCENE)
    leader = engine.submit([1], GREEDY, prefix=scene)
    follower = engine.submit([2], GREEDY, prefix=scene)
    engine.step()
    engine.cancel(leader)
    outputs = finish(engine, clock)
    assert texts(outputs, follower) == expected([*SCENE, 2], 6)
    assert runner.rows_of_node == {scene.id: len(SCENE)}


def test_a_failed_step_ends_its_requests_only_and_leaves_nothing_half_computed() -> None:
    engine, runner, clock = make_engine(max_num_batched_tokens=12)
    scene = engine.create_prefix(SCENE)
    waiting = engine.submit([1], GREEDY, prefix=scene)
    unlucky = engine.submit([5] * 4, GREEDY, priority=0)
    runner.fail_next = True
    outputs = engine.step()
    assert last(outputs, unlucky).finish == "failed"
    outputs += finish(engine, clock)
    assert texts(outputs, waiting) == expected([*SCENE, 1], 6)
    assert engine.gauges["requests_failed"] == 1
    assert engine.gauges["blocks_held"] == 0


def test_impossible_requests_are_refused_before_anything_is_taken() -> None:
    engine, _, _ = make_engine(blocks=10, max_model_len=200, max_waiting=3)
    engine.step()
    before = dict(engine.gauges)
    with pytest.raises(ContextExceeded) as refused:
        engine.submit([1] * 35, GREEDY)
    assert (refused.value.limit, refused.value.actual) == (40, 41)
    for bad in ([], [-1], [10_000], ["a"], [True]):
        with pytest.raises(InvalidRequest):
            engine.submit(bad, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        engine.submit([1], GREEDY, priority=-1)
    for n in range(3):
        engine.submit([n], GREEDY)
    with pytest.raises(QueueFull):
        engine.submit([1], GREEDY)
    assert engine.gauges == before


def test_a_quest_giver_parks_the_youngest_reply_which_resumes_with_the_same_text() -> None:
    engine, runner, clock = make_engine()  # 4 slots, 1 reserved
    long = dataclasses.replace(GREEDY, max_tokens=30)
    ordinary = [engine.submit([i], long) for i in range(3)]
    first_quest = engine.submit([50], long, priority=0)
    outputs = []
    for _ in range(3):
        clock[0] += 0.1  # gauges are as old as that at most
        outputs += engine.step()
    assert engine.gauges["running"] == 4
    quest = engine.submit([60], long, priority=0)
    outputs += engine.step()
    assert texts(outputs, quest), "first token in the very next step"
    parked = [r for r in ordinary if r.state is State.PARKED]
    assert parked == [ordinary[2]]
    outputs += finish(engine, clock)
    for request, prompt in [*zip(ordinary, ([0], [1], [2]), strict=True), (quest, [60])]:
        assert texts(outputs, request) == expected(prompt, 30)
    assert last(outputs, first_quest).finish == "length"
    assert engine.gauges["parks"] == 1
    read = [s for p in runner.steps for s in p.sequences if s.owner is ordinary[2]]
    assert len(read) == 30, "nothing was computed twice"


def test_a_reply_is_parked_at_most_once() -> None:
    engine, _, clock = make_engine(max_num_seqs=2)
    long = dataclasses.replace(GREEDY, max_tokens=20)
    victim = engine.submit([1], long)
    outputs = engine.step()
    parks = []
    for n in range(6):
        engine.submit([60, n], dataclasses.replace(GREEDY, max_tokens=4), priority=0)
        engine.submit([61, n], dataclasses.replace(GREEDY, max_tokens=4), priority=0)
        outputs += finish(engine, clock) if n == 5 else engine.step()
        parks.append(engine.gauges["parks"])
    assert max(parks) == 1
    assert texts(outputs, victim) == expected([1], 20)


def test_a_quest_giver_short_of_memory_takes_a_parked_replys_blocks() -> None:
    engine, _, clock = make_engine(blocks=16, max_num_seqs=2, reserved_slots=0)
    long = dataclasses.replace(GREEDY, max_tokens=20)
    ordinary = [engine.submit([n] * 8, long, salt=str(n)) for n in range(2)]  # 7 blocks each
    outputs = engine.step()
    outputs += engine.step()
    quest = engine.submit([9] * 8, long, priority=0)
    outputs += engine.step()
    assert texts(outputs, quest), "2 blocks were free, 7 needed"
    outputs += finish(engine, clock)
    assert engine.gauges["preemptions"] == 1
    for request, prompt in [(ordinary[0], [0] * 8), (ordinary[1], [1] * 8), (quest, [9] * 8)]:
        assert texts(outputs, request) == expected(prompt, 20)


@pytest.mark.parametrize("steps_before", range(6))
def test_cancelling_a_parked_reply_gives_everything_back(steps_before: int) -> None:
    engine, _, clock = make_engine(max_num_seqs=2)
    long = dataclasses.replace(GREEDY, max_tokens=10)
    victim = engine.submit([1], long)
    engine.step()
    for n in range(2):
        engine.submit([60 + n], long, priority=0)
    for _ in range(steps_before):
        engine.step()
    engine.cancel(victim)
    outputs = engine.step()
    assert last(outputs, victim).finish == "cancelled"
    finish(engine, clock)
    assert engine.gauges["blocks_held"] == engine.gauges["parked"] == 0


def order_of_first_tokens(policy: str, **settings: object) -> list[str]:
    """Who speaks first when six requests compete for one ordinary slot."""
    engine, _, clock = make_engine(
        max_num_seqs=1, reserved_slots=0, parking=False, scheduling_policy=policy, **settings
    )
    short = dataclasses.replace(GREEDY, max_tokens=2)
    scene = engine.create_prefix(SCENE)
    names: dict[int, str] = {}

    def come(name: str, **how: object) -> None:
        request = engine.submit([len(names)], short, **how)  # type: ignore[arg-type]
        names[request.id] = name
        clock[0] += 0.001

    come("ann1", shares=("ann", "inn"), priority=1)
    come("ann2", shares=("ann", "inn"), priority=1)
    come("cold", shares=("eve", "hut"), priority=1, prefix=scene)
    come("bob1", shares=("bob", "inn"), priority=1)
    come("quest", shares=("ann", "inn"), priority=0)
    outputs = finish(engine, clock)
    ends = [names[o.request_id] for o in outputs if o.finish is not None]
    assert sorted(ends) == sorted(names.values())
    return ends


def test_fifo_is_in_order_of_arrival() -> None:
    assert order_of_first_tokens("fifo") == ["ann1", "ann2", "cold", "bob1", "quest"]


def test_priority_takes_the_quest_giver_first() -> None:
    assert order_of_first_tokens("priority") == ["quest", "ann1", "ann2", "cold", "bob1"]


def test_fair_lets_nobody_have_two_before_everybody_had_one() -> None:
    order = order_of_first_tokens("fair")
    assert order[0] == "ann1"
    assert set(order[1:3]) == {"cold", "bob1"}


def test_elastic_starts_those_with_least_to_compute_but_is_not_endlessly_patient() -> None:
    engine, _, clock = make_engine(
        max_num_batched_tokens=6, max_num_seqs=2, reserved_slots=0, scheduling_policy="elastic"
    )
    short = dataclasses.replace(GREEDY, max_tokens=1)
    cold = engine.submit([1], short, prefix=engine.create_prefix(SCENE))
    for n in range(8):
        engine.submit([2] * 5, short, salt=str(n))
    outputs = []
    while len(outputs) < 8:
        outputs += engine.step()
    assert not texts(outputs, cold), "everybody who can start at once goes before a cold scene"
    engine.submit([3] * 5, short)
    clock[0] += 6
    for _ in range(6):
        engine.submit([4] * 5, short)
        outputs += engine.step()
    assert texts(outputs, cold), "but not for ever"
    finish(engine, clock)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 17])
def test_samples_of_one_prompt_compute_it_once_and_never_write_into_each_other(length: int) -> None:
    engine, _, clock = make_engine(max_num_seqs=5)
    prompt = list(range(100, 100 + length))
    first = engine.submit(prompt, GREEDY)
    others = [engine.submit(prompt, GREEDY, sibling=first) for _ in range(3)]
    outputs = finish(engine, clock)
    for request in (first, *others):
        assert texts(outputs, request) == expected(prompt, 6)
    assert engine.gauges["prefill_tokens_computed"] == length + 3
    assert engine.gauges["blocks_held"] == 0


def test_a_sample_whose_sibling_is_cancelled_reads_the_prompt_itself() -> None:
    engine, _, clock = make_engine(max_num_batched_tokens=8)
    prompt = list(range(100, 120))
    first = engine.submit(prompt, GREEDY)
    second = engine.submit(prompt, GREEDY, sibling=first)
    engine.step()
    engine.cancel(first)
    assert texts(finish(engine, clock), second) == expected(prompt, 6)


def test_eos_ends_a_reply_and_is_not_shown() -> None:
    engine, runner, clock = make_engine()
    runner.run = lambda plan: [Sampled(EOS) for s in plan.sequences if s.sample]  # type: ignore[method-assign]
    request = engine.submit([1], SamplingParams(max_tokens=5, temperature=0))
    end = last(finish(engine, clock), request)
    assert (end.finish, end.text) == ("stop", "")


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, cancels, warm-ups, releases and failing steps in any order.

    `CheckingRunner` fails the run as soon as any row attends to KV that is not its own history.
    """

    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine
        self.runner: CheckingRunner
        self.prefixes: list[Prefix] = []
        self.open: dict[int, tuple[Request, list[int]]] = {}
        self.collected: dict[int, list[int]] = {}

    @initialize(
        policy=st.sampled_from(["fifo", "priority", "fair", "elastic"]), parking=st.booleans()
    )
    def make(self, policy: str, parking: bool) -> None:
        self.engine, self.runner, self.clock = make_engine(
            blocks=40, max_waiting=20, scheduling_policy=policy, parking=parking
        )

    def _step(self) -> None:
        self.clock[0] += 0.05
        for output in self.engine.step():
            self.collected.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish is not None:
                request, prompt = self.open.pop(output.request_id)
                said = self.collected.pop(output.request_id)
                assert said == self.expected(request, prompt, len(said))
                if output.finish == "length":
                    assert len(said) == request.params.max_tokens

    def expected(self, request: Request, prompt: list[int], count: int) -> list[int]:
        return expected(prompt, count)

    @rule(length=st.integers(1, 14), parent=st.integers(0, 3), text=st.integers(0, 2))
    def create_prefix(self, length: int, parent: int, text: int) -> None:
        above = self.prefixes[parent] if parent < len(self.prefixes) else None
        if above is not None and above.total > 40:
            above = None
        self.prefixes.append(self.engine.create_prefix([text * 50] * length, above))

    @precondition(lambda self: self.prefixes)
    @rule(data=st.data())
    def release_prefix(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.prefixes) - 1))
        self.engine.release_prefix(self.prefixes.pop(index))

    @precondition(lambda self: self.prefixes)
    @rule(data=st.data())
    def warm(self, data: st.DataObject) -> None:
        self.engine.warm(data.draw(st.sampled_from(self.prefixes)), lambda error: None)

    @rule(
        data=st.data(),
        own=st.integers(1, 20),
        text=st.integers(0, 2),
        count=st.integers(1, 12),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["a", "b"]),
    )
    def submit(
        self, data: st.DataObject, own: int, text: int, count: int, priority: int, salt: str
    ) -> None:
        prefix = data.draw(st.sampled_from([None, *self.prefixes]))
        prompt = [300 + text] * own
        params = dataclasses.replace(GREEDY, max_tokens=count)
        try:
            request = self.engine.submit(
                prompt,
                params,
                prefix=prefix,
                priority=priority,
                salt=salt,
                shares=(f"player{text}", salt),
            )
        except (QueueFull, ContextExceeded):
            return
        whole = [*(prefix.all_token_ids() if prefix else ()), *prompt]
        self.open[request.id] = (request, whole)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request, _ = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        self.engine.cancel(request)

    @rule()
    def fail_a_step(self) -> None:
        self.runner.fail_next = True
        self._step()
        self.runner.fail_next = False

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self._step()

    @invariant()
    def books_add_up(self) -> None:
        self.engine.check()

    def teardown(self) -> None:
        for prefix in self.prefixes:
            self.engine.release_prefix(prefix)
        for _ in range(3000):
            if not self.engine.has_work:
                break
            self._step()
        assert not self.engine.has_work, "the engine does not come to rest"
        assert not self.open, "a request never ended"
        assert self.engine.gauges["blocks_held"] == 0
        assert self.engine.gauges["running"] == self.engine.gauges["waiting"] == 0


SchedulerMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestSchedulerMachine = SchedulerMachine.TestCase


def test_a_node_that_everybody_released_is_freed_with_its_last_request() -> None:
    engine, _, clock = make_engine()
    scene = engine.create_prefix(SCENE)
    mira = engine.create_prefix([50, 51, 52], scene)
    request = engine.submit([60], GREEDY, prefix=mira)
    engine.step()
    engine.release_prefix(mira)
    engine.release_prefix(scene)
    outputs = finish(engine, clock)
    assert texts(outputs, request) == expected([*SCENE, 50, 51, 52, 60], 6)
    gauges = engine.gauges
    assert gauges["blocks_held"] == 0
    assert gauges["blocks_free"] + 1 == gauges["blocks_total"], "only the talk may be found again"
    again = engine.create_prefix(SCENE)
    engine.submit([61], GREEDY, prefix=again)
    finish(engine, clock)
    engine.check()
