"""Sampling follows its parameters, and a row's token depends on nothing but that row."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.decoding.penalties import LogitChanges
from engine.decoding.sampling import SampleSpec, sample, uniform
from engine.errors import InvalidRequest
from engine.params import SamplingParams


def draws(logits: torch.Tensor, params: SamplingParams, count: int = 1500) -> list[int]:
    spec = [SampleSpec(params, seed, 3) for seed in range(count)]
    return [drawn.token for drawn in sample(logits.repeat(count, 1), spec)]


def test_zero_temperature_is_argmax() -> None:
    logits = torch.randn(5, 100)
    specs = [SampleSpec(SamplingParams(temperature=0), 1, 1)] * 5
    assert tokens(logits, specs) == logits.argmax(-1).tolist()


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
    drawn = {tokens(logits, [SampleSpec(params, s, 0)])[0] for s in range(15)}
    assert drawn <= allowed


def tokens(logits: torch.Tensor, specs: list[SampleSpec]) -> list[int]:
    return [drawn.token for drawn in sample(logits.clone(), specs)]


def changes(params: SamplingParams, prompt: list[int], output: list[int]) -> LogitChanges:
    made = LogitChanges(params, prompt, frozenset({9}), [(5,), (6, 7)])
    for token in output:
        made.push(token)
    return made


def test_a_row_does_not_depend_on_its_mates() -> None:
    logits = torch.randn(8, 2000)
    params = SamplingParams(temperature=0.9, top_p=0.8, repetition_penalty=1.2)
    specs = [SampleSpec(params, s, s, changes(params, [s], [s + 1])) for s in range(8)]
    alone = [tokens(logits[i : i + 1], [specs[i]])[0] for i in range(8)]
    assert tokens(logits, specs) == alone


def changed(
    row: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    values = np.array(row, dtype=np.float32)
    changes(params, prompt, output).apply(values)
    return values.tolist()


ROW = [4.0, -1.0, 0.5, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    row = changed(ROW, SamplingParams(repetition_penalty=2.0), [0], [1])
    assert row[:4] == [2.0, -2.0, 0.5, 2.0]


def test_presence_and_frequency_count_the_output_only() -> None:
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5)
    row = changed(ROW, params, [3, 3], [0, 0, 1])
    assert row[:4] == [4.0 - 1.0 - 2 * 0.5, -1.0 - 1.0 - 0.5, 0.5, 2.0]


def test_bias_is_added_and_the_end_is_banned_until_min_tokens() -> None:
    params = SamplingParams(logit_bias={2: 10.0, 3: -100.0}, min_tokens=2)
    row = changed(ROW, params, [], [0])
    assert (row[2], row[3], row[9]) == (10.5, -98.0, -math.inf)
    assert changed(ROW, params, [], [0, 1])[9] == 1.0


def test_a_bad_word_is_banned_only_where_it_would_be_completed() -> None:
    params = SamplingParams(bad_words=("x",))
    row = changed(ROW, params, [6], [])
    assert (row[5], row[7]) == (-math.inf, 0.0)
    assert changed(ROW, params, [], [1, 6])[7] == -math.inf


@given(
    st.sets(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=12),
    st.lists(st.integers(0, 3), max_size=12),
    st.dictionaries(st.integers(0, 3), st.floats(-100, 100)),
)
def test_bans_and_biases_are_those_of_their_definition(
    words: set[tuple[int, ...]], output: list[int], biases: dict[int, float]
) -> None:
    state = LogitChanges(
        SamplingParams(bad_words=("x",), logit_bias=biases), (), frozenset(), sorted(words)
    )
    for token in output:
        state.push(token)
    row = np.arange(4, dtype=np.float32)
    wanted = row.copy()
    state.apply(row)
    for token, bias in biases.items():
        wanted[token] += np.float32(bias)
    for word in words:
        if tuple(output[len(output) - len(word) + 1 :]) == word[:-1] or len(word) == 1:
            wanted[word[-1]] = -np.inf
    np.testing.assert_array_equal(row, wanted)


def test_logprobs_are_the_models_own_before_temperature_and_penalties() -> None:
    logits = torch.randn(1, 50)
    params = SamplingParams(temperature=0.3, top_k=1, logprobs=3, logit_bias={7: 50.0})
    spec = SampleSpec(params, 0, 0, changes(params, [], []))
    (drawn,) = sample(logits.clone(), [spec])
    wanted = torch.log_softmax(logits[0].double(), -1)
    assert drawn.token == 7
    assert drawn.logprobs is not None
    assert list(drawn.logprobs)[:3] == wanted.topk(3).indices.tolist()
    for token, value in drawn.logprobs.items():
        assert value == pytest.approx(float(wanted[token]), abs=1e-6)
    assert 7 in drawn.logprobs


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
        {"stop": None},
        {"logit_bias": None},
        {"logit_bias": {1: "a"}},
        {"ignore_eos": "no"},
        {"presence_penalty": 3},
        {"frequency_penalty": "x"},
        {"min_tokens": 17},
        {"n": 0},
        {"logprobs": -1},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {1: 10**400}},
        {"temperature": 10**400},
        {"repetition_penalty": 1e39},
        {"bad_words": ("",)},
    ],
)
def test_a_bad_parameter_is_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(bad))):
        SamplingParams(**bad)  # type: ignore[arg-type]
