"""Weights as `products` wants them: rounded, and laid out in panels."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.native.products import WIDTH
from kernels.cpu.native.vectors import LANES


class Matrix(NamedTuple):
    """The same projection of every layer.

    Attributes:
        weight: uint8 [layers, outputs / 16, steps, 16, 4], padded with zeros: the bytes of four
            int8 or of two bfloat16.
        scales: float32 [layers, outputs], what an int8's one is worth.
        zeros: int32 [layers, outputs], 128 · Σ w of int8.
    """

    weight: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    zeros: npt.NDArray[np.int32]

    @classmethod
    def empty(cls, layers: int, outputs: int, inputs: int, *, halves: bool) -> "Matrix":
        """Room for `layers` matrices [outputs, inputs], in bfloat16 if `halves`."""
        wide, steps = padded(outputs, WIDTH), -(-inputs // (2 if halves else 4))
        return cls(
            np.zeros((layers, wide // LANES, steps, LANES, 4), np.uint8),
            np.zeros((layers, wide), np.float32),
            np.zeros((layers, wide), np.int32),
        )

    def put(self, layer: int, weight: torch.Tensor, *, halves: bool) -> None:
        """Round and lay out one matrix, any float dtype [outputs, inputs].

        8-bit integers are symmetric with one scale per output: its largest weight becomes 127.
        """
        outputs, inputs = weight.shape
        panels, steps = self.weight.shape[1:3]
        if halves:
            whole = torch.zeros(panels * LANES, steps * 2, dtype=torch.bfloat16)
        else:
            whole = torch.zeros(panels * LANES, steps * 4, dtype=torch.int8)
            weight = weight.float()
            scales = weight.abs().amax(1).clamp_min(1e-12) / 127.0
            weight = (weight / scales[:, None]).round()
            self.scales[layer, :outputs] = scales.numpy()
            self.zeros[layer, :outputs] = 128 * weight.int().sum(1).numpy()
        whole[:outputs, :inputs] = weight.to(whole.dtype)
        laid_out = whole.view(torch.uint8).view(panels, LANES, steps, 4).transpose(1, 2)
        self.weight[layer] = laid_out.numpy()


def padded(number: int, step: int) -> int:
    """`number`, or the next multiple of `step`."""
    return -(-number // step) * step
