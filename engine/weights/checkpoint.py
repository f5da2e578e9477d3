"""What a model file offers, whatever its format."""

from pathlib import Path
from typing import Protocol

import torch

from engine.errors import ModelError
from engine.models.config import ModelConfig
from engine.tokenizer import Tokenizer


class Checkpoint(Protocol):
    """A model on disk. Tensors have the names and layout of a Llama on the Hugging Face hub: what a
    family stores fused is given out in parts, and gains of norms are what is multiplied with.

    Attributes:
        config: its shape.
    """

    config: ModelConfig

    @property
    def name(self) -> str:
        """What to call the model."""

    @property
    def template(self) -> str | None:
        """Its Jinja chat template."""

    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""

    def __contains__(self, name: str) -> bool:
        """Whether it has this tensor."""

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in float32; raises `ModelError` when there is none of this name."""

    def unread(self) -> list[str]:
        """Stored names of the tensors that nobody has asked for, but for those no decoder needs."""

    @property
    def source(self) -> Path:
        """The file or folder, for messages."""


def sized(checkpoint: Checkpoint, name: str, *shape: int) -> torch.Tensor:
    """A tensor in float32, of this shape.

    Raises:
        ModelError: there is none of this name, or it has not the size the config says.
    """
    tensor = checkpoint.tensor(name)
    if tuple(tensor.shape) != shape:
        raise ModelError(
            f"{checkpoint.source}: {name} is {list(tensor.shape)}, the config says {list(shape)}"
        )
    return tensor
