"""What a step will take is learnt from what steps took, on any device and in spite of noise."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cost import StepCost

#: Milliseconds of a step, of a speaker, of reading at all, of a token read; most speakers, most
#: tokens: a GPU, the same launching what reads by itself, two cores, two slow ones, a toy.
DEVICES = [
    (5.0, 0.022, 0.0, 0.0235, 256, 2000),
    (5.0, 0.022, 8.0, 0.0235, 256, 2000),
    (5.0, 0.6, 0.0, 0.38, 16, 512),
    (80.0, 6.0, 0.0, 3.0, 16, 512),
    (0.0, 0.001, 0.0, 0.0001, 16, 512),
]


def took(device: tuple[float, ...], speakers: int, tokens: int) -> float:
    base, speaker, reading, token = device[:4]
    return base + speaker * speakers + (reading + token * tokens if tokens else 0.0)


def learned(device: tuple[float, ...], steps: int, seed: int, noise: float = 0.0) -> StepCost:
    cost, chance = StepCost(), random.Random(seed)
    for _ in range(steps):
        speakers = chance.randint(0, int(device[4]))
        tokens = chance.choice((0, 0, chance.randint(1, int(device[5]))))
        factor = 1 + noise * chance.uniform(-1, 1)
        if speakers or tokens:
            cost.learn(speakers, tokens, took(device, speakers, tokens) * factor)
    return cost


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), load=st.floats(0, 1), read=st.floats(0, 1))
def test_steps_of_every_size_are_foreseen(
    device: tuple[float, ...], seed: int, load: float, read: float
) -> None:
    cost = learned(device, 400, seed)
    speakers, tokens = int(load * device[4]), int(read * device[5])
    wanted = took(device, speakers, tokens)
    slack = 0.03 * took(device, int(device[4]), int(device[5]))
    assert cost.expected_ms(speakers, tokens) == pytest.approx(wanted, rel=0.1, abs=slack)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_noise_does_no_harm(seed: int) -> None:
    device = DEVICES[0]
    cost = learned(device, 300, seed, noise=0.3)
    for speakers, tokens in ((64, 0), (64, 600), (200, 300)):
        wanted = took(device, speakers, tokens)
        assert cost.expected_ms(speakers, tokens) == pytest.approx(wanted, rel=0.25)


def test_a_dozen_steps_are_enough() -> None:
    """A burst of cold scenes must not be over before its steps are the right size."""
    cost = StepCost()
    for number in range(12):
        speakers, tokens = 4 * number, 1500 - 100 * number
        cost.learn(speakers, tokens, took(DEVICES[0], speakers, tokens))
    assert cost.expected_ms(50, 700) == pytest.approx(took(DEVICES[0], 50, 700), rel=0.2)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 256),
            st.integers(0, 8192),
            st.floats(0, 1e6, allow_nan=False),
        ),
        max_size=60,
    ),
    speakers=st.integers(0, 255),
    tokens=st.integers(0, 8191),
)
def test_nothing_costs_less_than_nothing_and_more_never_less(
    steps: list[tuple[int, int, float]], speakers: int, tokens: int
) -> None:
    """Whatever was measured: steps of no time, steps of a quarter of an hour."""
    cost = StepCost()
    for step in steps:
        cost.learn(*step)
    assert 0 < cost.token_ms < float("inf")
    assert 0 <= cost.expected_ms(speakers, tokens) < float("inf")
    assert cost.expected_ms(speakers, tokens) <= cost.expected_ms(speakers + 1, tokens)
    assert cost.expected_ms(speakers, tokens) <= cost.expected_ms(speakers, tokens + 1)


def test_disturbed_steps_change_little() -> None:
    """A second's pause of the machine, three times, in a step that takes 18 ms."""
    cost = learned(DEVICES[0], 200, 1)
    before = cost.expected_ms(64, 500)
    for _ in range(3):
        cost.learn(64, 500, 1000.0)
    assert cost.expected_ms(64, 500) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("factor", [3.0, 0.4])
def test_a_machine_that_becomes_another_is_followed(factor: float) -> None:
    device = DEVICES[2]
    cost, chance = learned(device, 200, 1), random.Random(2)
    for _ in range(300):
        speakers, tokens = chance.randint(1, 16), chance.choice((0, 0, 200))
        cost.learn(speakers, tokens, factor * took(device, speakers, tokens))
    assert cost.expected_ms(12, 150) == pytest.approx(factor * took(device, 12, 150), rel=0.2)


def test_what_reading_costs_is_not_forgotten_while_nobody_reads() -> None:
    """An hour of speech by the same replies says nothing of the next scene."""
    cost = learned(DEVICES[0], 300, 1)
    for _ in range(5000):
        cost.learn(64, 0, took(DEVICES[0], 64, 0))
    assert cost.expected_ms(64, 600) == pytest.approx(took(DEVICES[0], 64, 600), rel=0.05)
