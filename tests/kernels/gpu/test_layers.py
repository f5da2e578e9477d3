"""The small kernels compute what `kernels.reference` says, and write nothing else."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from kernels import reference
from kernels.gpu import layers

BLOCK = 16


def random(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(device, dtype)


@pytest.mark.parametrize("width", [64, 576])
def test_norms(width: int, device: torch.device) -> None:
    x, residual = random(3, width, device=device), random(3, width, device=device)
    weight = random(width, device=device)
    wanted = reference.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(layers.rms_norm(x, weight, 1e-5), wanted)
    total = x + residual
    normed = layers.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(residual, total)
    torch.testing.assert_close(normed, reference.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_silu_gate(dtype: torch.dtype, device: torch.device) -> None:
    gate_up = random(3, 2 * 100, device=device, dtype=dtype)
    torch.testing.assert_close(layers.silu_gate(gate_up), reference.silu_gate(gate_up))


def test_embed_takes_ids_from_the_host_or_from_the_step_before(device: torch.device) -> None:
    table = random(50, 48, device=device)
    ids = torch.tensor([3, -1, 49, -3, 0], dtype=torch.int32, device=device)
    drawn = torch.tensor([7, 8, 9], dtype=torch.int32, device=device)
    assert torch.equal(layers.embed(ids, drawn, table), table[[3, 7, 49, 9, 0]])


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 64), (3, 1, 80), (12, 4, 32)])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_store(
    heads: int, kv_heads: int, dim: int, normed: bool, device: torch.device
) -> None:
    positions = torch.tensor([5, 40, 18, 0], dtype=torch.int32, device=device)
    start = torch.tensor([0, 30, 0, 0], dtype=torch.int32, device=device)
    first = torch.tensor([0, 1, 2, 4], dtype=torch.int32, device=device)
    blocks = torch.tensor([4, 0, 6, 3, 1], dtype=torch.int32, device=device)
    slots = torch.tensor([4 * BLOCK + 5, 0 * BLOCK + 10, 3 * BLOCK + 2, 1 * BLOCK])
    cos, sin = reference.rope_tables([1.0 / (1 + i) for i in range(dim // 2)], 64)
    keys = random(kv_heads, 8 * BLOCK, dim, device=device)
    values = random(kv_heads, 8 * BLOCK, dim, device=device)
    qkv = random(4, (heads + 2 * kv_heads) * dim, device=device)
    norms = (random(dim, device=device), random(dim, device=device)) if normed else None

    split = qkv.view(4, -1, dim).cpu()
    q, k, v = split.split((heads, kv_heads, kv_heads), 1)
    if norms:
        q = reference.rms_norm(q, norms[0].cpu(), 1e-5)
        k = reference.rms_norm(k, norms[1].cpu(), 1e-5)
    at = positions.cpu().long()
    wanted_q, wanted_k = (reference.rope(x, cos[at], sin[at]) for x in (q, k))
    wanted_keys, wanted_values = keys.cpu().clone(), values.cpu().clone()
    reference.store_kv(wanted_keys, wanted_values, slots, wanted_k, v)

    half = dim // 2
    found = layers.rope_store(
        qkv,
        (cos[:, :half].contiguous().to(device), sin[:, half:].contiguous().to(device)),
        positions,
        start,
        first,
        blocks,
        keys,
        values,
        heads=heads,
        block_size=BLOCK,
        head_norms=norms,
        eps=1e-5,
    )
    torch.testing.assert_close(found.cpu(), wanted_q, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(keys.cpu(), wanted_keys, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(values.cpu(), wanted_values)
