"""From the hidden states of a text's tokens to one vector."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import InvalidRequest

PoolingKind = Literal["mean", "last"]
Vector = npt.NDArray[np.float32]


class Pooling:
    """Gathers the final hidden states of one text, step by step, on the device where they are."""

    def __init__(self, kind: PoolingKind = "mean", *, normalize: bool = True) -> None:
        """Begin a text.

        Args:
            kind: "mean" of all tokens, or the "last" token's, which has read them all.
            normalize: divide the vector by its length.

        Raises:
            InvalidRequest: another kind.
        """
        if kind not in get_args(PoolingKind):
            raise InvalidRequest(f"pooling must be 'mean' or 'last', not {kind!r}")
        self._kind = kind
        self._normalize = normalize
        self._rows = 0
        self._sum: torch.Tensor | None = None

    def add(self, states: torch.Tensor) -> None:
        """Take in the states of the next tokens, float [rows, hidden]; they are not kept."""
        if self._kind == "last":
            self._sum, self._rows = states[-1].double(), 1
            return
        added = states.sum(0, dtype=torch.float64)
        self._sum = added if self._sum is None else self._sum + added
        self._rows += len(states)

    def vector(self) -> Vector:
        """The vector, float32 [hidden]; waits for the device.

        Raises:
            InvalidRequest: the model gave no states, as scripted ones do.
        """
        if self._sum is None:
            raise InvalidRequest("this model has no hidden states to make embeddings of")
        pooled = (self._sum / self._rows).cpu().numpy()
        if self._normalize:
            pooled = pooled / max(float(np.linalg.norm(pooled)), 1e-12)
        return pooled.astype(np.float32)
