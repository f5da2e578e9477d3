"""KV of parked replies waits in host memory: nothing is lost, mixed up, or computed twice."""

import random
from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import BlockPool
from engine.build import build_engine
from engine.config import EngineConfig
from engine.decoding.sampling import Sampled
from engine.errors import ModelError
from engine.kv.cache import KVCache
from engine.kv.swap import HostStore
from engine.loop import Engine
from engine.memory import Memory
from engine.overlap import OverlapEngine
from engine.plan import StepPlan, Swap
from engine.prefixes import PrefixTree
from engine.request import Request
from engine.swapping import Swapping
from tests.engine.fakes import GREEDY, LetterTokenizer, expected, finish
from tests.engine.test_overlap import LaunchingRunner
from tests.engine.test_scheduler import last, texts
from tests.gameserver.stage import byte_model

BLOCK = 4


class SwappingChecker(LaunchingRunner):
    """Checks every step against a shadow of the device's memory, and keeps one of the host's."""

    def __init__(self, blocks: int, places: int, most_rows: int) -> None:
        super().__init__(BLOCK, blocks * BLOCK, most_rows)
        self.kept: list[list[tuple[int, int] | None]] = [[None] * BLOCK for _ in range(places)]
        self.fail_moving = False

    def run(self, plan: StepPlan) -> list[Sampled]:
        if self.fail_moving and plan.swaps_out:
            self.fail_moving, self.fail_next = False, True
        if not self.fail_next:
            for out in plan.swaps_out:
                for block, place in zip(out.blocks, out.kept, strict=True):
                    self.kept[place] = self.shadow[block * BLOCK : (block + 1) * BLOCK]
            for back in plan.swaps_in:
                for block, place in zip(back.blocks, back.kept, strict=True):
                    self.shadow[block * BLOCK : (block + 1) * BLOCK] = self.kept[place]
        return super().run(plan)


@dataclass
class Stage:
    engine: Engine
    runner: SwappingChecker
    clock: list[float]
    places: int

    @property
    def free_places(self) -> int:
        return self.engine._scheduler._swapping.free


def stage(kind: type[Engine], blocks: int, places: int) -> Stage:
    clock = [0.0]
    config = EngineConfig(
        max_num_seqs=3,
        reserved_slots=1,
        max_num_batched_tokens=24,
        min_prefill_tokens=4,
        block_size=BLOCK,
        swap_space=places * 10,
    )
    runner = SwappingChecker(blocks, places, config.max_num_batched_tokens)
    pool = BlockPool(blocks, BLOCK, block_bytes=10)
    arguments = (runner, LetterTokenizer(), pool, 200, config)
    engine = kind(*arguments, clock=lambda: clock[0])  # type: ignore[arg-type]
    return Stage(engine, runner, clock, places)


KINDS = [Engine, OverlapEngine]
LONG = replace(GREEDY, max_tokens=20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("places", [0, 2, 40])
def test_a_reply_whose_place_a_quest_giver_takes_goes_on_with_the_same_text(
    kind: type[Engine], places: int
) -> None:
    """With room in host memory it computes nothing again; with too little it does."""
    world = stage(kind, blocks=16, places=places)
    engine, clock = world.engine, world.clock
    ordinary = [engine.submit([n] * 8, LONG, salt=str(n)) for n in range(2)]  # 7 blocks each
    outputs = []
    for _ in range(4):
        clock[0] += 0.01
        outputs += engine.step()
    quests = [engine.submit([90 + n] * 8, LONG, priority=0, salt=f"q{n}") for n in range(2)]
    outputs += finish(engine, clock)
    for number, request in enumerate(ordinary):
        assert texts(outputs, request) == expected([number] * 8, 20)
    for number, request in enumerate(quests):
        assert texts(outputs, request) == expected([90 + number] * 8, 20)
    gauges = engine.gauges
    assert gauges["parks"] >= 1
    if places == 40:
        assert (gauges["swaps"] >= 1, gauges["preemptions"]) == (True, 0)
        assert gauges["prefill_tokens_computed"] == gauges["prefill_tokens_ideal"]
    else:
        assert (gauges["swaps"], gauges["preemptions"] >= 1) == (0, True)
    assert gauges["blocks_held"] == 0
    assert world.free_places == places
    engine.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_fails_while_kv_moves_leaves_nobody_with_kv_that_is_not_there(
    kind: type[Engine],
) -> None:
    world = stage(kind, blocks=16, places=40)
    engine, clock = world.engine, world.clock
    ordinary = [engine.submit([n] * 8, LONG, salt=str(n)) for n in range(2)]
    outputs = []
    for _ in range(4):
        clock[0] += 0.01
        outputs += engine.step()
    world.runner.fail_moving = True
    for n in range(3):
        engine.submit([90 + n] * 8, LONG, priority=0, salt=f"q{n}")
    outputs += finish(engine, clock)
    assert not world.runner.fail_moving, "a step that moved KV has failed"
    ends = [last(outputs, request) for request in ordinary]
    assert "length" in {end.finish for end in ends}
    for number, (request, end) in enumerate(zip(ordinary, ends, strict=True)):
        if end.finish == "length":
            assert texts(outputs, request) == expected([number] * 8, 20)
    assert engine.gauges["preemptions"] >= 1
    assert world.free_places == 40
    engine.check()


def test_a_place_that_a_step_empties_is_not_filled_by_the_same_step() -> None:
    """It sends all out before it fetches anything: what is still to be fetched would be lost."""
    pool = BlockPool(8, BLOCK)
    swapping = Swapping(Memory(pool, PrefixTree(pool), None), places=1)
    first, second = (
        Mock(computed=BLOCK, blocks=pool.allocate(1), slid=1, pooling=None, own_limit=BLOCK)
        for _ in range(2)
    )
    assert swapping.put_away(first)
    assert not swapping.put_away(second), "there is one place"
    swapping.moves()
    assert swapping.bring_back(first)
    assert not swapping.put_away(second)
    outs, ins = swapping.moves()
    assert (len(outs), len(ins)) == (0, 1)
    assert swapping.put_away(second)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), places=st.integers(0, 16))
def test_whatever_happens_texts_are_right_and_everything_comes_back(
    kind: type[Engine], seed: int, places: int
) -> None:
    """Arrivals of all classes, cancellations and failing steps in a pool that is always short."""
    chance = random.Random(seed)
    world = stage(kind, blocks=16, places=places)
    engine, clock = world.engine, world.clock
    asked: list[tuple[Request, list[int], int]] = []
    outputs = []
    for number in range(60):
        if chance.random() < 0.4:
            prompt = [chance.randrange(900) for _ in range(chance.randint(1, 12))]
            tokens, priority = chance.randint(1, 20), chance.choice((0, 0, 1, 2))
            params = replace(GREEDY, max_tokens=tokens)
            request = engine.submit(prompt, params, priority=priority, salt=str(number))
            asked.append((request, prompt, tokens))
        if asked and chance.random() < 0.05:
            engine.cancel(chance.choice(asked)[0])
        world.runner.fail_next = chance.random() < 0.03
        clock[0] += 0.01
        outputs += engine.step()
    world.runner.fail_next = False
    outputs += finish(engine, clock)
    for request, prompt, tokens in asked:
        whole = expected(prompt, tokens)
        said = texts(outputs, request)
        assert said == whole[: len(said)]
        if last(outputs, request).finish == "length":
            assert said == whole
    engine.check()
    assert engine.gauges["blocks_held"] == 0
    assert world.free_places == places


def test_blocks_come_back_as_they_went() -> None:
    cache = KVCache(2, 3, 8, 6, BLOCK, torch.float32, torch.device("cpu"))
    cache.keys.normal_()
    cache.values.normal_()
    before = [side.clone() for side in (cache.keys, cache.values)]
    store = HostStore(cache, 4)
    owner: Request = object()  # type: ignore[assignment]
    store.move(StepPlan(1, (), swaps_out=(Swap(owner, (1, 4), (3, 0)),)))
    cache.keys.zero_()
    cache.values.zero_()
    store.move(StepPlan(2, (), swaps_in=(Swap(owner, (5, 2), (3, 0)),)))
    for side, was in zip((cache.keys, cache.values), before, strict=True):
        assert torch.equal(side[:, :, 20:24], was[:, :, 4:8])
        assert torch.equal(side[:, :, 8:12], was[:, :, 16:20])
        assert not side[:, :, :8].any()


def test_one_step_may_move_out_and_in_through_the_same_block() -> None:
    cache = KVCache(1, 1, 2, 2, BLOCK, torch.float32, torch.device("cpu"))
    store = HostStore(cache, 2)
    owner: Request = object()  # type: ignore[assignment]
    cache.keys[:] = 1.0
    store.move(StepPlan(1, (), swaps_out=(Swap(owner, (0,), (0,)),)))
    cache.keys[:] = 2.0
    out, back = Swap(owner, (0,), (1,)), Swap(owner, (0,), (0,))
    store.move(StepPlan(2, (), swaps_out=(out,), swaps_in=(back,)))
    assert cache.keys[0, 0, 0, 0] == 1.0
    store.move(StepPlan(3, (), swaps_in=(Swap(owner, (0,), (1,)),)))
    assert cache.keys[0, 0, 0, 0] == 2.0


def test_where_kv_is_in_host_memory_anyway_the_setting_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"swap_space .* set swap_space to 0"):
        build_engine(byte_model(["x"]), EngineConfig(swap_space=1 << 30))
