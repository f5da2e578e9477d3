"""The CPU attention equals its definition, and no row notices what is computed beside it."""

import random
from typing import Any

import pytest
import torch

from engine.plan import Span
from kernels.cpu.attention import PagedAttention
from kernels.cpu.panels import TILE, AttentionPlan
from kernels.reference import paged_attention

SLOTS = 6000


def scattered(chance: random.Random, context: int) -> tuple[tuple[int, int], ...]:
    """Runs of random lengths that hold `context` tokens."""
    runs = []
    while context:
        length = min(context, chance.choice((1, 16, 48, TILE, 500)))
        runs.append((chance.randrange(SLOTS - length), length))
        context -= length
    return tuple(runs)


def random_spans(chance: random.Random) -> list[Span]:
    """Decode rows and prompt chunks, some of them on a shared prefix."""
    prefix = scattered(chance, chance.choice((100, TILE, 2 * TILE, 450)))
    spans, row = [], 0
    for _ in range(chance.randint(1, 12)):
        rows = chance.choice((1, 1, 1, 2, 7, 64, 150))
        own = rows + chance.choice((0, 0, 5, 60, 300))
        runs = scattered(chance, own)
        if chance.random() < 0.6:
            runs = prefix + runs
        spans.append(Span(row, row + rows, sum(length for _, length in runs), runs))
        row += rows
    return spans


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 16), (8, 1, 32)])
@pytest.mark.parametrize("seed", range(6))
def test_equals_the_definition_and_each_span_alone(
    heads: int, kv_heads: int, dim: int, seed: int
) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    keys, values = torch.randn(2, kv_heads, SLOTS, dim)
    spans = random_spans(chance)
    q = torch.randn(spans[-1].end, heads, dim)
    together = PagedAttention(spans, heads, kv_heads, SLOTS)(q, keys, values)
    torch.testing.assert_close(
        together, paged_attention(q, keys, values, spans).flatten(1), rtol=1e-4, atol=1e-5
    )
    for span in spans:
        rows = span.end - span.start
        alone = PagedAttention([Span(0, rows, span.context, span.runs)], heads, kv_heads, SLOTS)
        assert torch.equal(
            alone(q[span.start : span.end], keys, values), together[span.start : span.end]
        )


OPTIONS = (
    {"window": 1},
    {"window": 70},
    {"window": TILE},
    {"window": 333, "cap": 3.0},
    {"cap": 2.0, "scale": 0.3},
)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_windows_caps_and_scales(options: dict[str, Any], seed: int) -> None:
    """As defined, and to the bit what each span gets alone in pieces."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    keys, values = torch.randn(2, 2, SLOTS, 16)
    spans = random_spans(chance)
    q = torch.randn(spans[-1].end, 6, 16)
    together = PagedAttention(spans, 6, 2, SLOTS, **options)(q, keys, values)
    wanted = paged_attention(q, keys, values, spans, **options).flatten(1)
    torch.testing.assert_close(together, wanted, rtol=1e-4, atol=1e-5)
    for span in spans:
        first = chance.randrange(span.start, span.end)
        alone = Span(0, span.end - first, span.context, span.runs)
        found = PagedAttention([alone], 6, 2, SLOTS, **options)(q[first : span.end], keys, values)
        assert torch.equal(found, together[first : span.end])


def test_a_window_bounds_the_work() -> None:
    """However long the context, a row reads the tiles its window touches, and no others."""
    plan = AttentionPlan([Span(0, 1, 5000, ((0, 5000),))], group=1, window=TILE)
    assert [panel.columns for panel in plan.panels] == [2 * TILE]


def test_a_shared_prefix_is_read_once() -> None:
    scene = ((0, 3 * TILE),)
    spans = [Span(n, n + 1, 3 * TILE + 40, (*scene, (1000 + 100 * n, 40))) for n in range(16)]
    plan = AttentionPlan(spans, group=3)
    (panel,) = plan.panels
    reads = [(product.end - product.start, product.width) for product in panel.scores]
    assert reads == [(64, 3 * TILE), (64, TILE)], "one product for the scene, one for all the rest"


def test_others_broken_numbers_stay_theirs() -> None:
    """Neither the slots behind a context nor the neighbours' rows leak into a result."""
    keys, values = torch.randn(2, 2, SLOTS, 16)
    q = torch.randn(2, 4, 16)
    good = Span(0, 1, 100, ((0, 100),))
    expected = PagedAttention([good], 4, 2, SLOTS)(q[:1], keys, values)
    keys[:, 100:] = values[:, 100:] = float("nan")
    both = [good, Span(1, 2, 50, ((200, 50),))]
    found = PagedAttention(both, 4, 2, SLOTS)(q, keys, values)
    assert torch.equal(found[:1], expected)
    assert found[1].isnan().all()
