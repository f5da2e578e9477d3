"""Random trees of scenes, personas and dialogues for attention tests."""

import itertools
import random
from dataclasses import dataclass

import numpy as np
import torch

from kernels.tree_work import Piece, Share, TileRows, Work, plan_work


@dataclass
class Case:
    """A batch over a cache, as tensors."""

    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    shares: list[Share]

    def work(self, most: TileRows) -> Work:
        return plan_work(self.shares, most)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Case":
        q, keys, values = (tensor.to(device, dtype) for tensor in (self.q, self.keys, self.values))
        return Case(q, keys, values, self.positions.to(device), self.shares)

    def rows(self) -> list[range]:
        """Of each share."""
        ends = list(itertools.accumulate((share.count for share in self.shares), initial=0))
        return [range(*pair) for pair in itertools.pairwise(ends)]

    def pick(self, chosen: list[int]) -> "Case":
        """The batch of some of the shares alone."""
        shares = [self.shares[number] for number in chosen]
        rows = [row for number in chosen for row in self.rows()[number]]
        index = torch.tensor(rows, device=self.q.device)
        return Case(self.q[index], self.keys, self.values, self.positions[index], shares)


class Forest:
    """Hands out blocks, scattered, and remembers positions."""

    def __init__(self, blocks: int, block_size: int, seed: int) -> None:
        self.size = block_size
        self.chance = random.Random(seed)
        self._free = list(range(blocks))
        self.chance.shuffle(self._free)
        self._keys = 0

    def piece(self, length: int, after: tuple[Piece, ...] = (), *, shared: bool = True) -> Piece:
        start = after[-1].start + after[-1].length if after else 0
        count = -(-length // self.size)
        blocks = np.array([self._free.pop() for _ in range(count)], np.int32)
        self._keys += 1
        return Piece(self._keys if shared else -1, start, length, blocks)


def build(
    shares: list[tuple[tuple[Piece, ...], int, int, bool]],
    blocks: int,
    block_size: int,
    heads: int,
    kv_heads: int,
    dim: int,
    seed: int = 0,
) -> Case:
    """A batch of (pieces, tokens of the last piece before these rows, rows, speaking)."""
    made, positions = [], []
    for pieces, done, count, speaking in shares:
        made.append(Share(count, pieces, speaking))
        first = pieces[-1].start + done
        positions += range(first, first + count)
    generator = torch.Generator().manual_seed(seed)
    shape = (kv_heads, blocks * block_size, dim)
    return Case(
        torch.randn(len(positions), heads, dim, generator=generator, dtype=torch.float64),
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.tensor(positions, dtype=torch.int32),
        made,
    )
