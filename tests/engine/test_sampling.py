"""Sampling follows its parameters, and a row's token depends on nothing but that row."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.decoding.sampling import SampleSpec, sample, uniform
from engine.errors import InvalidRequest
from engine.params import SamplingParams


def draws(logits: torch.Tensor, params: SamplingParams, count: int = 1500) -> list[int]:
    spec = [SampleSpec(params, seed, 3) for seed in range(count)]
    return sample(logits.repeat(count, 1), spec)


def test_zero_temperature_is_argmax() -> None:
    logits = torch.randn(5, 100)
    specs = [SampleSpec(SamplingParams(temperature=0), 1, 1)] * 5
    assert sample(logits, specs) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_softmax(temperature: float) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    found = torch.bincount(torch.tensor(draws(logits, SamplingParams(temperature=temperature))))
    wanted = torch.softmax(logits[0] / temperature, -1)
    assert torch.allclose(found / found.sum(), wanted, atol=0.05)


@given(
    st.integers(0, 2**32),
    st.integers(0, 20),
    st.floats(0.05, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.1, 3.0),
)
@settings(max_examples=40, deadline=None)
def test_only_tokens_that_every_filter_keeps_are_drawn(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    """Against a reference that sorts everything in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 3000, generator=generator) * 3
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    p, order = torch.softmax(logits[0].double() / temperature, -1).sort(descending=True)
    if top_k:
        p, order = p[:top_k] / p[:top_k].sum(), order[:top_k]
    keep = (p.cumsum(0) - p < top_p + 1e-12) & (p >= min_p * p[0] - 1e-15)
    allowed = set(order[keep].tolist()) | {int(order[0])}
    drawn = {sample(logits.clone(), [SampleSpec(params, s, 0)])[0] for s in range(15)}
    assert drawn <= allowed


def test_a_row_does_not_depend_on_its_mates() -> None:
    logits = torch.randn(8, 2000)
    params = SamplingParams(temperature=0.9, top_p=0.8, repetition_penalty=1.2)
    specs = [SampleSpec(params, s, s, torch.tensor([s, s + 1])) for s in range(8)]
    alone = [sample(logits[i : i + 1].clone(), [specs[i]])[0] for i in range(8)]
    assert sample(logits.clone(), specs) == alone


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    logits = torch.tensor([[4.0, 3.0, -0.1, -0.2]])
    params = SamplingParams(temperature=0, repetition_penalty=2.0)
    assert sample(logits.clone(), [SampleSpec(params, 0, 0, torch.tensor([0]))]) == [1]
    logits = torch.tensor([[-1.0, -1.5]])
    assert sample(logits.clone(), [SampleSpec(params, 0, 0, torch.tensor([0]))]) == [1]


def test_noise_is_uniform_and_counters_are_independent() -> None:
    numbers = [uniform(s, c) for s in range(100) for c in range(100)]
    values = torch.tensor(numbers)
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.005
    assert len(set(numbers)) == 10_000


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": 2},
        {"top_k": -1},
        {"repetition_penalty": 0},
        {"seed": -1},
        {"stop": ("",)},
    ],
)
def test_a_bad_parameter_is_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(bad))):
        SamplingParams(**bad)  # type: ignore[arg-type]
