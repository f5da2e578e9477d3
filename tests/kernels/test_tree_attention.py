"""Tree attention on the CPU equals its definition, whatever is shared and however much."""

import random
from typing import Any

import pytest
import torch

from engine.plan import Span
from kernels.cpu.tree_attention import TreeAttention
from kernels.reference import paged_attention
from tests.kernels.test_attention import OPTIONS

SLOTS = 6000
Runs = tuple[tuple[int, int], ...]


def scattered(chance: random.Random, length: int) -> Runs:
    """`length` tokens in one run or in several."""
    runs = []
    while length:
        count = min(length, chance.choice((1, 16, 48, 700, 700)))
        runs.append((chance.randrange(SLOTS - count), count))
        length -= count
    return tuple(runs)


def random_spans(chance: random.Random, trees: int, most: int) -> list[Span]:
    """Speaking rows and prompt chunks over trees of scenes and personas, in any order."""
    scenes = [(n, scattered(chance, chance.choice((1, 40, 300, 512)))) for n in range(trees)]
    personas = [
        (100 + n, scattered(chance, chance.choice((1, 16, 33, 128)))) for n in range(2 * trees)
    ]
    spans, row = [], 0
    for _ in range(chance.randint(1, most)):
        n = chance.randrange(trees)
        depth = chance.choice((0, 1, 2, 2, 2))
        nodes = (scenes[n], personas[2 * n + chance.randrange(2)])[:depth]
        rows = chance.choice((1, 1, 1, 2, 7, 48, 150))
        own = scattered(chance, rows + chance.choice((0, 0, 5, 60, 300)))
        runs = tuple(run for _, piece in nodes for run in piece) + own
        shared = tuple((key, sum(length for _, length in piece)) for key, piece in nodes)
        spans.append(Span(row, row + rows, sum(length for _, length in runs), runs, shared))
        row += rows
    return spans


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 16), (8, 1, 128)])
@pytest.mark.parametrize("seed", range(8))
def test_equals_the_definition(heads: int, kv_heads: int, dim: int, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    keys, values = torch.randn(2, kv_heads, SLOTS, dim)
    spans = random_spans(chance, chance.choice((1, 2, 5)), chance.choice((1, 4, 16)))
    q = torch.randn(spans[-1].end, heads, dim)
    expected = paged_attention(q, keys, values, spans).flatten(1)
    found = TreeAttention(spans, heads, kv_heads)(q, keys, values)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    halves = (tensor.bfloat16() for tensor in (q, keys, values))
    found = TreeAttention(spans, heads, kv_heads)(*halves)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_windows_caps_and_scales(options: dict[str, Any], seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    keys, values = torch.randn(2, 2, SLOTS, 16)
    spans = random_spans(chance, chance.choice((1, 3)), chance.choice((1, 12)))
    q = torch.randn(spans[-1].end, 6, 16)
    expected = paged_attention(q, keys, values, spans, **options).flatten(1)
    found = TreeAttention(spans, 6, 2, **options)(q, keys, values)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    halves = (tensor.bfloat16() for tensor in (q, keys, values))
    found = TreeAttention(spans, 6, 2, **options)(*halves)
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)


def test_pieces_inside_everybodys_window_stay_shared() -> None:
    spans = [Span(n, n + 1, 560, ((0, 512), (600 + 48 * n, 48)), ((7, 400), (8, 112)))
             for n in range(16)]  # fmt: skip
    plan = TreeAttention(spans, 9, 3, window=170)
    sizes = sorted((call.jobs, call.height, call.width) for call in plan._calls)
    assert sizes == [(1, 16, 112), (16, 1, 10), (16, 1, 48)]


def test_a_lone_speaker_reads_its_context_in_one_piece() -> None:
    keys, values = torch.randn(2, 3, 900, 64)
    span = Span(0, 1, 700, ((0, 500), (600, 200)), ((1, 500),))
    q = torch.randn(1, 9, 64)
    torch.testing.assert_close(
        TreeAttention([span], 9, 3)(q, keys, values),
        paged_attention(q, keys, values, [span]).flatten(1),
        rtol=1e-4,
        atol=1e-5,
    )


def test_speakers_of_one_scene_read_it_once() -> None:
    spans = [Span(n, n + 1, 560, ((0, 512), (600 + 48 * n, 48)), ((7, 512),)) for n in range(16)]
    plan = TreeAttention(spans, 9, 3)
    sizes = sorted((call.jobs, call.height, call.width) for call in plan._calls)
    assert sizes == [(1, 16, 512), (16, 1, 48)]
