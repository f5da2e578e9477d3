"""The device changes logits as the CPU does, step after step."""

import random
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from engine.decoding.constraint import Constraint
from engine.decoding.penalties import LogitChanges
from engine.params import SamplingParams
from kernels.gpu.changes import BANS, BIASES, CONTEXT, DISTINCT, Told, record
from kernels.gpu.sampling import Scratch, parameters, sample
from tests.triton_mode import kernel_device

VOCAB = 90
TOKEN = st.integers(0, 7)
BAN = st.lists(TOKEN, min_size=1, max_size=4).map(tuple)
STEPS = 6


def recorded(
    changes: LogitChanges, params: SamplingParams, *, held: bool = False
) -> np.ndarray | None:
    return record(
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
        biases=params.logit_bias,
        bans=changes.bans,
        late=changes.late,
        min_tokens=params.min_tokens,
        max_tokens=params.max_tokens,
        held=held,
    )


def on_device(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).to(kernel_device())


def held_to(allowed: frozenset[int]) -> Constraint:
    """A constraint whose grammar has just said this."""
    banned = np.ones(VOCAB, np.bool_)
    banned[list(allowed)] = False
    ends: Any = np.array([], np.int64)
    asked: Any = SimpleNamespace(is_accepting=lambda: False)
    never: Any = None
    return Constraint(asked, banned, never, ends=ends, endless=False, spell=never, is_whole=never)


def bits(tokens: Collection[int]) -> np.ndarray:
    flags = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
    flags[list(tokens)] = 1
    return np.packbits(flags, bitorder="little").view("<i4")


@given(
    fields=st.fixed_dictionaries(
        {
            "presence_penalty": st.sampled_from([0.0, 0.7]),
            "frequency_penalty": st.sampled_from([0.0, 1.1]),
            "repetition_penalty": st.sampled_from([1.0, 1.5]),
            "logit_bias": st.dictionaries(TOKEN, st.sampled_from([-3.0, 2.0]), max_size=4),
            "min_tokens": st.integers(0, 3),
        }
    ),
    bans=st.lists(BAN, max_size=40),
    grammar=st.none() | st.lists(st.frozensets(TOKEN, min_size=1), min_size=STEPS, max_size=STEPS),
    seed=st.integers(0, 2**20),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=40, deadline=None)
def test_logits_change_as_on_the_cpu(
    fields: Mapping[str, Any],
    bans: list[tuple[int, ...]],
    grammar: list[frozenset[int]] | None,
    seed: int,
    dtype: torch.dtype,
) -> None:
    """Greedy, from a few tokens only, so that all that can happen happens; beside a row that is
    drawn as it is. A grammar may allow nothing but what is banned, or what the model rules out.
    """
    params = SamplingParams(max_tokens=STEPS, temperature=0.0, **fields)
    prompt, late = [1, 5], frozenset({2})
    changes = LogitChanges(params, prompt, late, bans)
    wanted = recorded(changes, params, held=grammar is not None)
    assert wanted is not None
    told = Told.new(3, VOCAB, kernel_device())
    told.records.fill_(7)  # what stands behind a record is not read
    told.records[2, : len(wanted)] = torch.from_numpy(wanted)
    told.seen.copy_(torch.from_numpy(np.stack([bits(prompt)] * 3)))
    plain = {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "seed": 1}
    penalty = params.repetition_penalty
    rows = [parameters(**plain), parameters(**plain, repetition_penalty=penalty, record=2)]  # type: ignore[arg-type]
    table, samples = on_device(np.stack(rows)), on_device(np.arange(2, dtype=np.int32))
    positions = on_device(np.zeros(2, np.int32))
    scratch = Scratch.new(2, VOCAB, kernel_device())
    scratch.changed.fill_(float("nan"))
    chance = np.random.default_rng(seed)
    for step in range(STEPS):
        numbers = chance.normal(0, 1, (2, VOCAB)).astype(np.float32)
        numbers[:, :8] += 4
        numbers[:, 5:7] = -np.inf
        logits = torch.from_numpy(numbers).to(kernel_device(), dtype)
        drawn = torch.full((2,), -7, dtype=torch.int32, device=kernel_device())
        row = logits[1].float().cpu().numpy().copy()
        unchanged = row.copy()
        changes.apply(row)
        if grammar is not None:
            constraint = held_to(grammar[step])
            told.allowed[2] = torch.from_numpy(bits(grammar[step]))
            constraint.restrict(row, unchanged)
        sample(logits, table, told, scratch, samples, positions, drawn)
        np.testing.assert_allclose(scratch.changed[1].cpu().numpy(), row, rtol=1e-6)
        token = int(drawn[1])
        assert row[token] == row.max()
        assert int(drawn[0]) == int(logits[0].float().argmax())
        changes.push(token)
    assert scratch.changed[0].isnan().all(), "what nothing changes is not copied"


@pytest.mark.parametrize(
    "fields",
    [
        {"bans": [(1,) * (CONTEXT.value + 2)]},
        {"bans": [(n, 1) for n in range(BANS.value)], "min_tokens": 1},
        {"biases": dict.fromkeys(range(BIASES.value + 1), 1.0)},
        {"presence": 0.1, "max_tokens": DISTINCT.value + 1},
    ],
)
def test_what_no_record_can_hold_is_left_to_the_host(fields: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"presence": 0.0, "frequency": 0.0, "biases": {}, "bans": []}
    usual |= {"late": [0], "min_tokens": 0, "max_tokens": 10_000}
    assert record(**usual) is not None
    assert record(**usual | fields) is None


def test_a_full_record_counts_every_token() -> None:
    """512 different tokens, and each of them once more."""
    params = SamplingParams(max_tokens=DISTINCT.value, frequency_penalty=1.0)
    changes = LogitChanges(params, [], frozenset())
    found = recorded(changes, params)
    assert found is not None
    plain = {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "seed": 1}
    table = on_device(parameters(**plain, record=0)[None])  # type: ignore[arg-type]
    vocab = 600
    told = Told.new(1, vocab, kernel_device())
    told.records[0, : len(found)] = torch.from_numpy(found)
    scratch = Scratch.new(1, vocab, kernel_device())
    order = random.Random(3).sample(range(vocab), DISTINCT.value)
    row = on_device(np.zeros(1, np.int32))
    for step, token in enumerate([*order, *order[::5]]):
        logits = torch.zeros(1, vocab, device=kernel_device())
        logits[0, token] = 100.0
        drawn = on_device(np.zeros(1, np.int32))
        sample(logits, table, told, scratch, row, row.clone(), drawn)
        assert int(drawn[0]) == token, step
        if step in (100, 511, 600):
            expected = logits[0].cpu().numpy().copy()
            changes.apply(expected)
            np.testing.assert_allclose(scratch.changed[0].cpu().numpy(), expected, rtol=1e-6)
        changes.push(token)
