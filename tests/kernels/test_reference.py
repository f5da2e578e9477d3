"""The definitions say what their names promise."""

import math

import torch

from kernels.reference import rms_norm, rope, rope_tables, silu_gate, store_kv


def test_rms_norm_makes_the_mean_square_one() -> None:
    x = torch.randn(5, 64) * 7
    normed = rms_norm(x, torch.ones(64), 0.0)
    torch.testing.assert_close(normed.pow(2).mean(-1), torch.ones(5))
    assert torch.equal(rms_norm(x, torch.full((64,), 2.0), 0.0), 2 * normed)


def test_rope_turns_pairs_and_keeps_relative_angles() -> None:
    cos, sin = rope_tables([math.pi / 2], 4)
    x = torch.tensor([[[1.0, 0.0]]]).expand(4, 1, 2)
    turned = rope(x, cos, sin)[:, 0]
    expected = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    torch.testing.assert_close(turned, expected, atol=1e-6, rtol=0)
    cos, sin = rope_tables([0.3, 0.01], 50)
    q, k = torch.randn(2, 1, 1, 4).expand(2, 50, 1, 4)
    products = (rope(q, cos, sin) * rope(k, cos, sin).roll(3, 0)).sum(-1)[3:]
    torch.testing.assert_close(products, products[:1].expand(47, 1), atol=1e-5, rtol=1e-5)


def test_store_kv_writes_only_its_slots() -> None:
    keys, values = torch.zeros(2, 3, 10, 4)
    k, v = torch.randn(2, 2, 3, 4)
    store_kv(keys, values, torch.tensor([7, 2]), k, v)
    assert torch.equal(keys[:, 7], k[0])
    assert torch.equal(values[:, 2], v[1])
    assert keys.count_nonzero(dim=(0, 2)).nonzero().flatten().tolist() == [2, 7]


def test_silu_gate() -> None:
    found = silu_gate(torch.tensor([[0.0, 2.0, 5.0, 3.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 3.0 * 2 / (1 + math.exp(-2))]]))
