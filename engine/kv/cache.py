"""The KV pool as tensors: one contiguous allocation, addressed by slot."""

from collections.abc import Sequence

import torch


class KVCache:
    """Keys and values of every layer in one contiguous pool.

    A slot is one token's place: `block * block_size + offset`. Heads come before slots so that
    physically consecutive blocks are a dense `[heads, tokens, dim]` view and attention needs no
    gather for them.

    Attributes:
        block_size: tokens per block.
        keys, values: [layers, kv_heads, slots, head_dim], `dtype`.
        blocks: the same numbers by block: [2 · layers · kv_heads, blocks, block_size · head_dim].
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (2, layers, kv_heads, blocks * block_size, head_dim)
        self.block_size = block_size
        self._block_numbers = block_size * head_dim
        self._pool = torch.zeros(shape, dtype=dtype, device=device)
        self.keys, self.values = self._pool[0], self._pool[1]
        self.blocks = self._pool.view(2 * layers * kv_heads, blocks, self._block_numbers)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy `count` slots from slot `source` on to slot `target` on, in every layer."""
        self._pool[:, :, :, target : target + count] = self._pool[:, :, :, source : source + count]

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks in every layer, all at once; no target may be a source."""
        blocks = self.blocks
        pair = torch.tensor((sources, targets))
        if blocks.is_cuda:  # from pinned memory the host need not wait for the device
            pair = pair.pin_memory().to(blocks.device, non_blocking=True)
        blocks.index_copy_(1, pair[1], blocks.index_select(1, pair[0]))
