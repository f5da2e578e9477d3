"""The KV pool as tensors: one contiguous allocation, addressed by slot."""

import torch


class KVCache:
    """Keys and values of every layer in one contiguous pool.

    A slot is one token's place: `block * block_size + offset`. Heads come before slots so that
    physically consecutive blocks are a dense `[heads, tokens, dim]` view and attention needs no
    gather for them.

    Attributes:
        block_size: tokens per block.
        keys, values: [layers, kv_heads, slots, head_dim], `dtype`.
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
        self._pool = torch.zeros(shape, dtype=dtype, device=device)
        self.keys, self.values = self._pool[0], self._pool[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self._pool.numel() * self._pool.element_size()

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy `count` slots from slot `source` on to slot `target` on, in every layer."""
        self._pool[:, :, :, target : target + count] = self._pool[:, :, :, source : source + count]
