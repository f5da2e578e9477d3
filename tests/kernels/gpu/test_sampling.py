"""The device draws what the twin draws, whoever else is in the batch."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from engine.decoding.sampling import uniform as cpu_uniform
from kernels.gpu.changes import Told
from kernels.gpu.sampling import Scratch, parameters, sample
from kernels.reference_sampling import sample_row, uniform

VOCAB = 2500
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.8, "repetition_penalty": 1.4},
    {"temperature": 0.0, "repetition_penalty": 3.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 10**9, "top_p": 1e-6},
    # Whose tokens do not fit a list, or may not all be on it.
    {"temperature": 1.0, "top_k": 700},
    {"temperature": 1.0, "top_k": 2400, "top_p": 0.9},
    {"temperature": 3.0, "top_p": 0.97},
    {"temperature": 2.0, "min_p": 0.01},
    {"temperature": 2.0, "min_p": 0.5},
    {"temperature": 3.0, "top_p": 0.97, "repetition_penalty": 1.2},
]


def case(
    ways: list[dict[str, Any]], seed: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[set[int]], np.ndarray]:
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(len(ways), VOCAB, generator=generator)).to(device, dtype)
    seen = np.zeros((len(ways), -(-VOCAB // 32)), np.uint32)
    sets, table = [], []
    for number, way in enumerate(ways):
        tokens = set(logits[number].topk(3).indices.tolist()) | {chance.randrange(VOCAB)}
        penalised = "repetition_penalty" in way
        sets.append(tokens if penalised else set())
        for token in sets[-1]:
            seen[number, token // 32] |= np.uint32(1 << token % 32)
        defaults: dict[str, Any] = {"top_p": 1.0, "min_p": 0.0, "top_k": 0}
        row = number if penalised else -1
        table.append(parameters(seed=chance.randrange(2**64), record=row, **defaults | way))
    bits = torch.from_numpy(seen.view(np.int32)).to(device)
    stacked = np.stack(table)
    return logits, torch.from_numpy(stacked).to(device), bits, sets, stacked


def draw(
    logits: torch.Tensor, table: torch.Tensor, seen: torch.Tensor, positions: torch.Tensor
) -> list[int]:
    count = len(logits)
    drawn = torch.full((count,), -7, dtype=torch.int32, device=logits.device)
    rows = torch.arange(count, dtype=torch.int32, device=logits.device)
    told = replace(Told.new(len(seen), logits.shape[1], logits.device), seen=seen)
    scratch = Scratch.new(*logits.shape, logits.device)
    for memory in (scratch.changed, scratch.scores):
        memory.fill_(float("nan"))  # nothing is read that was not written
    sample(logits, table, told, scratch, rows, positions, drawn)
    return [int(token) for token in drawn.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_what_the_twin_draws(dtype: torch.dtype, device: torch.device) -> None:
    logits, table, seen, sets, entries = case(WAYS, 1, device, dtype)
    positions = torch.arange(10, 10 + len(WAYS), dtype=torch.int32, device=device)
    wanted = [sample_row(logits[n].cpu(), entries[n], sets[n], 11 + n) for n in range(len(WAYS))]
    assert draw(logits, table, seen, positions) == wanted
    assert positions.tolist() == list(range(11, 11 + len(WAYS)))
    for number, tokens in enumerate(sets):
        if tokens:
            word = int(seen[number, wanted[number] // 32])
            assert word >> wanted[number] % 32 & 1, "a drawn token counts as seen"


def test_a_row_does_not_depend_on_its_batch_mates(device: torch.device) -> None:
    logits, table, seen, _, _ = case(WAYS[:5], 2, device, torch.float32)
    positions = torch.full((5,), 3, dtype=torch.int32, device=device)
    together = draw(logits, table, seen, positions.clone())
    for number in (1, 4):
        alone = slice(number, number + 1)
        assert draw(logits[alone], table[alone], seen, positions[alone].clone()) == [
            together[number]
        ]


def test_noise_is_the_one_of_the_cpu() -> None:
    for seed, position in ((0, 0), (2**62 + 5, 77), (123456789, 4000)):
        assert abs(uniform(seed, position) - cpu_uniform(seed, position)) < 2**-22


@pytest.mark.gpu
def test_frequencies_follow_the_probabilities(device: torch.device) -> None:
    """On a vocabulary of a real size, over many positions."""
    rows, vocab = 4000, 128256
    logits = torch.full((1, vocab), -20.0)
    logits[0, :4] = torch.tensor([2.0, 1.0, 0.0, -1.0])
    wanted = logits[0, :4].softmax(0)
    entry = parameters(temperature=1.0, top_p=0.9999, min_p=0.0, top_k=0, seed=5)
    table = torch.from_numpy(entry).to(device).repeat(rows, 1)
    seen = torch.zeros(1, vocab // 32 + 1, dtype=torch.int32, device=device)
    positions = torch.arange(rows, dtype=torch.int32, device=device)
    found = draw(logits.to(device).repeat(rows, 1), table, seen, positions)
    counts = torch.bincount(torch.tensor(found), minlength=4)[:4] / rows
    assert (counts - wanted).abs().max() < 0.03
