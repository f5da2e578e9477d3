"""The step's budget follows what steps really cost."""

import random

import pytest

from engine.config import EngineConfig
from engine.cost import StepCost

CONFIG = EngineConfig(step_target_ms=80.0, max_num_batched_tokens=512, min_prefill_tokens=32)


def learned(base: float, per_row: float, per_token: float, noise: float = 0.0) -> StepCost:
    cost, chance = StepCost(CONFIG), random.Random(1)
    for _ in range(300):
        speakers, tokens = chance.randint(0, 16), chance.choice((0, 0, 0, 64, 200))
        speaking = base + per_row * speakers if speakers else 0.0
        milliseconds = speaking + per_token * tokens
        cost.learn(speakers, tokens, milliseconds * (1 + noise * chance.uniform(-1, 1)))
    return cost


@pytest.mark.parametrize(("base", "per_row"), [(28.0, 1.0), (5.0, 0.02), (0.0, 3.0)])
def test_speaking_is_a_line_through_what_was_measured(base: float, per_row: float) -> None:
    cost = learned(base, per_row, 0.4)
    for speakers in (1, 8, 16):
        wanted = base + per_row * speakers
        assert cost.speaking_ms(speakers) == pytest.approx(wanted, rel=0.02)
        budget = int((80 - wanted) / 0.4)
        assert cost.prefill_budget(speakers) == pytest.approx(max(budget, 32), abs=3)


def test_urgent_steps_have_a_target_of_their_own() -> None:
    assert CONFIG.urgent_step_target_ms == 40
    assert learned(20.0, 1.0, 0.4).prefill_budget(4, urgent=True) == pytest.approx(40, abs=3)
    assert learned(20.0, 1.0, 0.4).prefill_budget(4) == pytest.approx(140, abs=3)


def test_a_target_that_speaking_uses_up_leaves_the_least_budget() -> None:
    assert learned(100.0, 1.0, 0.4).prefill_budget(8) == CONFIG.min_prefill_tokens


def test_with_nobody_speaking_only_the_steps_size_counts() -> None:
    assert learned(28.0, 1.0, 5.0).prefill_budget(0) == CONFIG.max_num_batched_tokens


def test_one_number_of_speakers_is_enough_and_noise_does_no_harm() -> None:
    cost = StepCost(CONFIG)
    for _ in range(100):
        cost.learn(4, 0, 40.0)
    assert cost.speaking_ms(4) == pytest.approx(40, rel=0.01)
    assert 0 <= cost.speaking_ms(1) <= cost.speaking_ms(16)
    noisy = learned(28.0, 1.0, 0.4, noise=0.5)
    assert noisy.speaking_ms(16) == pytest.approx(44, rel=0.35)
