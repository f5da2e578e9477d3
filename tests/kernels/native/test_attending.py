"""Attention over pieces of a paged cache equals the dense one in float64."""

import math

import numpy as np
import pytest
import torch

from kernels.cpu.native.vectors import has

if not has("avx512vnni"):
    pytest.skip("the processor has no AVX-512 VNNI", allow_module_level=True)

from numba import njit

from kernels.cpu.native.attending import BLOCK, GROUP_TOKENS, LOWEST, TILE, attend
from kernels.cpu.native.rows import store_key, store_query, store_value


@njit
def run(numbers, lows, limits, q, keys, values, blocks, state, out, scratch):
    attend(
        len(numbers),
        q.shape[1],
        q.ctypes.data,
        numbers.ctypes.data,
        lows.ctypes.data,
        limits.ctypes.data,
        keys.ctypes.data,
        values.ctypes.data,
        blocks.ctypes.data,
        state.ctypes.data,
        out.ctypes.data,
        scratch.ctypes.data,
    )


@njit
def fill(heads, blocks, into, key):
    dim = heads.shape[1]
    for token in range(len(heads)):
        block = into[blocks[token // BLOCK]]
        if key:
            store_key(heads[token], dim, block, token % BLOCK)
        else:
            store_value(heads[token], dim, block, token % BLOCK)


@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 13])
@pytest.mark.parametrize("window", [0, 100])
def test_equals_dense_attention(dim: int, rows: int, window: int) -> None:
    """Pieces of awkward lengths one after another; rows see different numbers of the last one."""
    chance = torch.Generator().manual_seed(dim + rows)
    lengths = (70, 16, 1, 133)
    total = sum(lengths)
    q = torch.randn(rows, dim, generator=chance)
    k, v = (torch.randn(total, dim, generator=chance).bfloat16().float() for _ in range(2))
    keys, values = np.zeros((2, 40, BLOCK * dim), np.uint16)
    halves = np.zeros((rows + 2, dim), np.uint16)
    numbers = np.arange(rows, dtype=np.int64) + 2  # rows need not be the first ones
    scale = math.log2(math.e) / math.sqrt(dim)
    for row in range(rows):
        store_query(q[row].numpy(), dim, np.float32(scale), halves[row + 2])
    state = np.zeros((rows + 2, 2), np.float32)
    state[:, 0] = LOWEST
    out = np.zeros((rows + 2, dim), np.float32)
    scratch = np.zeros(TILE * GROUP_TOKENS, np.uint16)
    places = np.random.default_rng(0).permutation(40).astype(np.int32)
    seen = np.array([1 + (row * 37) % 133 for row in range(rows)], np.int32)
    at = used = 0
    mine = sum(-(-length // BLOCK) for length in lengths)
    keys[places[mine:]] = values[places[mine:]] = 0x7FC0  # of others, and not a number
    for length in lengths:
        count = -(-length // BLOCK)
        blocks = np.concatenate((places[used : used + count], places[-3:]))
        fill(k[at : at + length].numpy(), blocks, keys, True)
        fill(v[at : at + length].numpy(), blocks, values, False)
        limits = seen if at + length == total else np.full(rows, length, np.int32)
        lows = np.clip(seen + total - lengths[-1] - window - at, 0, length).astype(np.int32)
        lows *= window > 0
        run(numbers, lows, limits, halves, keys, values, blocks, state, out, scratch)
        at += length
        used += count
    rounded = torch.from_numpy(halves[2:]).view(torch.bfloat16).double()
    scores = rounded @ k.double().T * math.log(2)
    ends = torch.from_numpy(seen)[:, None] + total - lengths[-1]
    visible = torch.arange(total) < ends
    if window:
        visible &= torch.arange(total) >= ends - window
    wanted = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v.double()
    found = torch.from_numpy(out[2:] / state[2:, 1:])
    torch.testing.assert_close(found.double(), wanted, rtol=0.01, atol=0.01)
    assert (out[:2] == 0).all(), "rows that were not asked for are left alone"


def test_a_row_that_sees_nothing_of_a_piece_is_unchanged() -> None:
    dim = 64
    keys, values = np.full((2, 8, BLOCK * dim), 0x3F80, np.uint16)
    q = np.full((2, dim), 0x3F80, np.uint16)
    state = np.array([[0.5, 2.0], [0.5, 2.0]], np.float32)
    out = np.ones((2, dim), np.float32)
    limits = np.array([0, 100], np.int32)
    scratch = np.zeros(TILE * GROUP_TOKENS, np.uint16)
    lows = np.zeros(2, np.int32)
    run(
        np.arange(2),
        lows,
        limits,
        q,
        keys,
        values,
        np.arange(8, dtype=np.int32),
        state,
        out,
        scratch,
    )
    assert (out[0] == 1).all()
    assert state[0].tolist() == [0.5, 2.0]
    assert out[1, 0] != 1
