"""A step's size follows what steps cost, within what the device's pace allows."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.budget import Budget
from engine.config import EngineConfig
from engine.cost import StepCost
from engine.pace import CPU, GPU, Pace


def cost_of(base: float, speaker: float, token: float, tile: int) -> StepCost:
    cost = StepCost(tile)
    for number in range(300):
        speakers, tokens = 1 + number % 16, (0, 0, 300)[number % 3]
        filled = tokens and -(-(speakers + tokens) // tile) * tile - speakers
        cost.learn(speakers, tokens, base + speaker * speakers + token * filled)
    return cost


CORES = cost_of(5.0, 0.6, 0.38, CPU.row_tile)
H200 = cost_of(5.0, 0.022, 0.0235, GPU.row_tile)
HALF_TILE_MS = 0.55 * GPU.row_tile * 0.0235


def test_reading_takes_what_the_target_leaves() -> None:
    budget = Budget(CPU, CORES)
    assert budget.reading(10, urgent=False) == pytest.approx((80 - 11) / 0.38, abs=3)
    assert budget.reading(10, urgent=True) == pytest.approx((40 - 11) / 0.38, abs=3)


def test_reading_has_its_share_where_speech_uses_the_target_up() -> None:
    budget = Budget(replace(CPU, step_target_ms=5.0), CORES)
    assert budget.reading(16, urgent=False) == pytest.approx(0.5 * 14.6 / 0.38, abs=2)


def test_before_anything_is_learnt_steps_are_short() -> None:
    assert Budget(CPU, StepCost()).reading(8, urgent=False) <= 100
    assert Budget(GPU, StepCost()).reading(64, urgent=False) <= 200


def test_while_nobody_speaks_steps_are_long() -> None:
    assert Budget(CPU, CORES).reading(0, urgent=True) == CPU.max_num_batched_tokens
    assert Budget(GPU, H200).reading(0, urgent=True) == pytest.approx((55 - 5) / 0.0235, rel=0.05)


@given(steps=st.lists(st.tuples(st.integers(0, 256), st.booleans()), max_size=300))
def test_few_tokens_come_late_whatever_happens(steps: list[tuple[int, bool]]) -> None:
    budget = Budget(GPU, H200)
    spoken = late = 0
    for speakers, urgent in steps:
        tokens = budget.reading(speakers, urgent=urgent)
        assert GPU.min_prefill_tokens <= tokens <= GPU.max_num_batched_tokens - speakers
        budget.planned(speakers, tokens, urgent=urgent)
        target = GPU.urgent_step_target_ms if urgent else GPU.step_target_ms
        least = 1.6 * H200.expected_ms(speakers)  # of which reading has its share in any case
        spoken += speakers
        took = H200.expected_ms(speakers, tokens)
        late += speakers * (took > max(target, least) + HALF_TILE_MS)
        assert late <= GPU.late_share * (spoken + 50 * GPU.max_num_seqs)


@given(speakers=st.integers(1, 256), urgent=st.booleans())
def test_tiles_are_filled(speakers: int, urgent: bool) -> None:
    """The rows that fill the last one take as long as if nobody had used them."""
    rows = speakers + Budget(GPU, H200).reading(speakers, urgent=urgent)
    assert rows % GPU.row_tile == 0


def test_on_two_cores_no_token_comes_late() -> None:
    budget = Budget(CPU, CORES)
    assert all(
        CORES.expected_ms(speakers, budget.reading(speakers, urgent=False)) < 81
        for speakers in range(1, 17)
    )


def test_others_pause_for_a_quest_giver_where_that_saves_it_much() -> None:
    """On two cores 14 of them cost more than the step itself; on a GPU 64 cost a quarter of it."""
    cores, gpu = Budget(CPU, CORES), Budget(GPU, H200)
    assert cores.speakers_pause(14)
    assert cores.readers_yield(14, 20)
    assert not cores.speakers_pause(2)
    assert not cores.readers_yield(14, 5)
    assert not gpu.speakers_pause(64)
    assert not gpu.readers_yield(64, 200)
    assert gpu.readers_yield(64, 1500), "a long step would keep the quest-giver waiting"


@given(
    st.sampled_from(["auto", "cpu", "cuda"]),
    st.dictionaries(
        st.sampled_from(
            ["max_num_seqs", "reserved_slots", "max_num_batched_tokens", "min_prefill_tokens"]
        ),
        st.integers(1, 600),
    ),
)
def test_what_is_named_holds_and_the_rest_follows(device: str, named: dict[str, int]) -> None:
    try:
        config = EngineConfig(device=device, **named)  # type: ignore[arg-type]
    except ValueError:
        return  # it names what cannot be together
    pace = Pace.of(config)
    assert {name: getattr(pace, name) for name in named} == named
    assert 0 <= pace.reserved_slots < pace.max_num_seqs
    assert pace.min_prefill_tokens >= 1
    assert pace.max_num_seqs + pace.min_prefill_tokens <= pace.max_num_batched_tokens


def test_a_device_has_a_pace_of_its_own() -> None:
    config = EngineConfig()
    assert Pace.of(config) == CPU
    assert Pace.of(msgspec.structs.replace(config, device="cuda")) == GPU
