"""Weights as `products` wants them: quantised once per output and laid out in panels."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.native.products import WIDTH
from kernels.cpu.native.vectors import LANES

#: Inputs are padded to it: two sets of four bytes.
DEPTH = 8


class Matrix(NamedTuple):
    """The same projection of every layer.

    Attributes:
        weight: int8 [layers, outputs / 16, inputs / 4, 16, 4], padded with zeros.
        scales: float32 [layers, outputs], what a weight's one is worth.
        zeros: int32 [layers, outputs], 128 · Σ w.
    """

    weight: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    zeros: npt.NDArray[np.int32]

    @classmethod
    def empty(cls, layers: int, outputs: int, inputs: int) -> "Matrix":
        """Room for `layers` matrices [outputs, inputs]."""
        wide, deep = padded(outputs, WIDTH), padded(inputs, DEPTH)
        return cls(
            np.zeros((layers, wide // LANES, deep // 4, LANES, 4), np.int8),
            np.zeros((layers, wide), np.float32),
            np.zeros((layers, wide), np.int32),
        )

    def put(self, layer: int, weight: torch.Tensor) -> None:
        """Quantise and lay out one matrix, any float dtype [outputs, inputs].

        Symmetric, one scale per output: the largest weight becomes 127.
        """
        weight = weight.float()
        outputs, inputs = weight.shape
        scales = weight.abs().amax(1).clamp_min(1e-12) / 127.0
        whole = torch.zeros(self.scales.shape[1], self.weight.shape[2] * 4, dtype=torch.int8)
        whole[:outputs, :inputs] = (weight / scales[:, None]).round().to(torch.int8)
        panels = whole.view(-1, LANES, self.weight.shape[2], 4).transpose(1, 2)
        self.weight[layer] = panels.numpy()
        self.scales[layer, :outputs] = scales.numpy()
        self.zeros[layer] = 128 * whole.int().sum(1).numpy()


def padded(number: int, step: int) -> int:
    """`number`, or the next multiple of `step`."""
    return -(-number // step) * step
