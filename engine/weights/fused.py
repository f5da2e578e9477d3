"""Projections that some families store as one tensor (Phi-3), given out in parts."""

from dataclasses import dataclass

import torch

from engine.errors import ModelError
from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [first, first + count) of the `total` rows of a stored tensor.

    Attributes:
        whole: its name on the hub.
    """

    whole: str
    first: int
    count: int
    total: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part; raises `ModelError` when the tensor has not `total` rows."""
        if len(tensor) != self.total:
            raise ModelError(f"{self.whole} has {len(tensor)} rows, the config says {self.total}")
        return tensor[self.first : self.first + self.count]


def part(name: str, config: ModelConfig) -> Part | None:
    """Where a fused model has the tensor `name`; None if it is one that nobody fuses."""
    inner, width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    fused = {"qkv_proj": {"q_proj": inner, "k_proj": width, "v_proj": width}}
    fused["gate_up_proj"] = {"gate_proj": config.ffn, "up_proj": config.ffn}
    for whole, parts in fused.items():
        first = 0
        for own, count in parts.items():
            if f".{own}." in name:
                return Part(name.replace(own, whole), first, count, sum(parts.values()))
            first += count
    return None
