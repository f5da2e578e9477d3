"""With a step under way, replies are what they would be without, and nothing is lost or leaked."""

import random
from dataclasses import replace

import pytest

from engine.blocks import BlockPool
from engine.decoding.sampling import Sampled
from engine.overlap import OverlapEngine
from engine.params import SamplingParams
from engine.plan import StepPlan
from engine.prefixes import Prefix
from engine.request import PENDING, Request
from tests.engine.fakes import (
    EOS,
    GREEDY,
    VOCAB,
    CheckingRunner,
    LetterTokenizer,
    expected,
    finish,
    small_config,
)


class Ready:
    def __init__(self, drawn: list[Sampled], fails: bool) -> None:
        self._drawn, self._fails = drawn, fails

    def result(self) -> list[Sampled]:
        if self._fails:
            raise RuntimeError("made to fail on the way")
        return self._drawn


class LaunchingRunner(CheckingRunner):
    """Knows the tokens under way, as a device does, and checks every step as its parent does."""

    def __init__(self, block_size: int, slots: int, most_rows: int) -> None:
        super().__init__(block_size, slots, most_rows)
        self.under_way: dict[Request, int] = {}
        self.by_host: set[Request] = set()
        self.fail_landing = False
        self.end_at: int | None = None

    def launch(self, plan: StepPlan) -> Ready:
        sequences = []
        for share in plan.sequences:
            tokens = share.tokens
            if PENDING in tokens:
                assert isinstance(share.owner, Request)
                assert share.owner not in self.by_host, "the host cannot know all tokens before"
                assert tokens.index(PENDING) == len(tokens) - 1
                tokens = (*tokens[:-1], self.under_way[share.owner])
            sequences.append(replace(share, tokens=tokens))
        drawn = self.run(replace(plan, shares=tuple(sequences), replies=()))
        owners = [share.owner for share in plan.sequences if share.sample]
        self.under_way = {
            owner: sampled.token
            for owner, sampled in zip(owners, drawn, strict=True)
            if isinstance(owner, Request)
        }
        fails, self.fail_landing = self.fail_landing, False
        return Ready(drawn, fails)

    def needs_host(self, request: Request) -> bool:
        return request in self.by_host

    def _history(self, owner: Request | Prefix) -> list[int]:  # type: ignore[override]
        history = CheckingRunner._history(owner)
        if history[-1] == PENDING:
            assert isinstance(owner, Request)
            history[-1] = self.under_way[owner]
        return history


def make(
    blocks: int = 64, **settings: object
) -> tuple[OverlapEngine, LaunchingRunner, list[float]]:
    clock = [0.0]
    config = small_config(**settings)
    runner = LaunchingRunner(4, blocks * 4, config.max_num_batched_tokens)
    engine = OverlapEngine(
        runner,
        LetterTokenizer(),
        BlockPool(blocks, 4),
        200,
        config,
        clock=lambda: clock[0],
    )
    return engine, runner, clock


def tokens_of(outputs: list, request: Request) -> list[int]:
    return [t for output in outputs if output.request_id == request.id for t in output.token_ids]


def test_replies_are_the_same_and_take_one_step_more() -> None:
    engine, runner, clock = make()
    scene = engine.create_prefix(range(10))
    prompts = [[20 + n, 30, 40][: n + 1] for n in range(3)]
    requests = [engine.submit(prompt, GREEDY, prefix=scene) for prompt in prompts]
    outputs = finish(engine, clock)
    for prompt, request in zip(prompts, requests, strict=True):
        assert tokens_of(outputs, request) == expected([*range(10), *prompt], 6)
    assert len(runner.steps) == 6, "no step is launched for replies that are complete"
    assert engine.gauges["generated_tokens"] == 18
    engine.check()


def test_a_step_is_launched_before_the_one_before_is_seen() -> None:
    engine, runner, _ = make()
    engine.submit([1, 2], GREEDY)
    assert engine.step() == []
    assert len(runner.steps) == 1
    first = engine.step()
    assert len(runner.steps) == 2
    assert first[0].token_ids == tuple(expected([1, 2], 1))


def test_what_was_drawn_after_the_end_is_dropped() -> None:
    """A reply that ends by itself is in one more step, of which nothing shows."""
    prompt = next(
        [n] for n in range(VOCAB) if EOS - 1 in expected([n], 6)[1:5]
    )  # EOS itself is never drawn by the fake
    engine, _, clock = make()
    engine._tokenizer.eos_ids = frozenset({EOS - 1})  # type: ignore[misc]
    params = SamplingParams(max_tokens=20, temperature=0)
    request = engine.submit(prompt, params)
    outputs = finish(engine, clock)
    wanted = expected(prompt, 6)
    wanted = wanted[: wanted.index(EOS - 1) + 1]
    assert tokens_of(outputs, request) == wanted
    assert outputs[-1].finish == "stop"
    assert outputs[-1].usage is not None and outputs[-1].usage.completion_tokens == len(wanted)
    assert engine.gauges["generated_tokens"] == len(wanted)
    engine.check()


def test_nobody_waits_for_a_reply_that_the_host_draws() -> None:
    """It joins every other step; by itself it takes a step for each token as well."""
    engine, runner, _ = make()
    free = engine.submit([1, 2], SamplingParams(max_tokens=9, temperature=0, ignore_eos=True))
    params = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True, logprobs=0)
    held = engine.submit([3, 4], params)
    runner.by_host.add(held)
    counts = []
    for _ in range(7):
        outputs = engine.step()
        counts.append((len(tokens_of(outputs, free)), len(tokens_of(outputs, held))))
    assert counts == [(0, 0), (1, 1), (1, 0), (1, 1), (1, 0), (1, 1), (1, 0)]
    finish(engine, [0.0])
    assert len(runner.steps) == 9 + 4, "each step has somebody in it"


@pytest.mark.parametrize("seed", range(30))
def test_storms(seed: int) -> None:
    """Arrivals, quests that park, cancels, little memory: the shadow cache finds any mix-up."""
    chance = random.Random(seed)
    engine, runner, clock = make(blocks=chance.choice((22, 30, 64)), max_waiting=100)
    scenes = [engine.create_prefix(chance.choices(range(VOCAB), k=n)) for n in (9, 14)]
    nodes = [None, *scenes, engine.create_prefix([5, 6, 7], scenes[0])]
    prompts: dict[int, list[int]] = {}
    requests: list[Request] = []
    outputs = []
    for _ in range(120):
        clock[0] += 0.01
        if chance.random() < 0.4:
            own = chance.choices(range(VOCAB), k=chance.randint(1, 12))
            node = chance.choice(nodes)
            length, held = chance.randint(1, 12), chance.random() < 0.15
            request = engine.submit(
                own,
                SamplingParams(
                    max_tokens=length,
                    temperature=0,
                    ignore_eos=True,
                    logprobs=0 if held else None,
                ),
                prefix=node,
                priority=chance.choice((0, 1, 1, 2)),
            )
            prompts[request.id] = [*(node.all_token_ids() if node else ()), *own]
            requests.append(request)
            if held:
                runner.by_host.add(request)
        if requests and chance.random() < 0.15:
            engine.cancel(chance.choice(requests))
        outputs += engine.step()
        engine.check()
    outputs += finish(engine, clock)
    ends = [output for output in outputs if output.finish is not None]
    assert sorted(end.request_id for end in ends) == sorted(prompts), "each ends once"
    for request in requests:
        said = tokens_of(outputs, request)
        assert said == expected(prompts[request.id], len(said))
        end = next(end for end in ends if end.request_id == request.id)
        assert end.finish in ("length", "cancelled"), end.error
        assert end.usage is not None and end.usage.completion_tokens == len(said)
        if end.finish == "length":
            assert len(said) == request.params.max_tokens
    engine.check()
    for node in reversed(nodes):
        if node is not None:
            engine.release_prefix(node)
    finish(engine, clock)
    assert engine.gauges["blocks_held"] == 0


@pytest.mark.parametrize("landing", [False, True])
def test_a_failed_step_ends_its_requests_alone(landing: bool) -> None:
    engine, runner, clock = make()
    request = engine.submit([1, 2, 3], GREEDY)
    engine.step()
    engine.step()
    if landing:
        runner.fail_landing = True
    else:
        runner.fail_next = True
    outputs = finish(engine, clock)
    assert [o.finish for o in outputs if o.finish] == ["failed"]
    assert outputs[-1].request_id == request.id
    later = engine.submit([4, 5], GREEDY)
    assert tokens_of(finish(engine, clock), later) == expected([4, 5], 6)
    engine.check()
