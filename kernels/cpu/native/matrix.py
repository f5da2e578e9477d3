"""Weights as `products` wants them: rounded, and laid out in panels."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.native.products import BYTES, GROUP, HALVES, NIBBLES, WIDTH
from kernels.cpu.native.vectors import LANES


class Matrix(NamedTuple):
    """The same projection of every layer.

    Attributes:
        form: BYTES, HALVES or NIBBLES.
        weight: uint8 [layers, outputs / 16, steps, …], padded with zeros.
        scales: float32 [layers, outputs]; what a byte's one is worth, and of NIBBLES what is added
            to each sum because activations have a zero point.
        zeros: int32 [layers, outputs], 128 · Σ w of BYTES.
    """

    form: int
    weight: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    zeros: npt.NDArray[np.int32]

    @classmethod
    def empty(cls, form: int, layers: int, outputs: int, inputs: int) -> "Matrix":
        """Room for `layers` matrices [outputs, inputs]."""
        wide = padded(outputs, WIDTH)
        deep = {BYTES: 4, HALVES: 2, NIBBLES: GROUP}[form]
        load = (5, 64) if form == NIBBLES else (LANES, 4)
        return cls(
            form,
            np.zeros((layers, wide // LANES, -(-inputs // deep), *load), np.uint8),
            np.zeros((layers, wide), np.float32),
            np.zeros((layers, wide), np.int32),
        )

    def put(self, layer: int, weight: torch.Tensor) -> None:
        """Round and lay out one matrix, any float dtype [outputs, inputs]."""
        {BYTES: self._put_bytes, HALVES: self._put_halves, NIBBLES: self._put_nibbles}[self.form](
            layer, weight
        )

    def _put_bytes(self, layer: int, weight: torch.Tensor) -> None:
        """Symmetric, one scale per output: its largest weight becomes 127."""
        outputs = len(weight)
        weight = weight.float()
        scales = weight.abs().amax(1).clamp_min(1e-12) / 127.0
        whole = (weight / scales[:, None]).round()
        self.scales[layer, :outputs] = scales.numpy()
        self.zeros[layer, :outputs] = 128 * whole.int().sum(1).numpy()
        self._put_words(layer, whole.to(torch.int8), 4)

    def _put_halves(self, layer: int, weight: torch.Tensor) -> None:
        self._put_words(layer, weight.to(torch.bfloat16), 2)

    def _put_words(self, layer: int, weight: torch.Tensor, per: int) -> None:
        """`per` inputs of an output lie side by side."""
        panels, steps = self.weight.shape[1:3]
        whole = torch.zeros(panels * LANES, steps * per, dtype=weight.dtype)
        whole[: weight.shape[0], : weight.shape[1]] = weight
        laid_out = whole.view(torch.uint8).view(panels, LANES, steps, 4).transpose(1, 2)
        self.weight[layer] = laid_out.numpy()

    def _put_nibbles(self, layer: int, weight: torch.Tensor) -> None:
        """Each group of 32 inputs has 16 values from its lowest to its highest weight.

        Weights that were quantised like this before, as in GGUF's Q4_1, keep their values.
        """
        panels, groups = self.weight.shape[1:3]
        whole = torch.zeros(panels * LANES, groups * GROUP)
        whole[: weight.shape[0], : weight.shape[1]] = weight
        grouped = whole.view(-1, groups, GROUP)
        lowest = grouped.amin(2).half()
        steps = ((grouped.amax(2) - lowest.float()) / 15).half()
        values = (grouped - lowest.float()[..., None]) / steps.float()[..., None].clamp_min(1e-12)
        values = values.round().clamp_(0, 15).to(torch.uint8)
        values.view(len(whole), -1)[:, weight.shape[1] :] = 0  # whatever stands there in a row
        zero = 128.0 * steps.double() * values.sum(2)
        self.scales[layer] = -zero.sum(1).float().numpy()
        # [panels, outputs, groups, four loads, two halves, four inputs] to the order of a load
        split = values.view(panels, LANES, groups, 4, 2, 4).permute(0, 2, 3, 1, 5, 4)
        packed = (split[..., 0] | (split[..., 1] << 4)).reshape(panels, groups, 4, 64)
        self.weight[layer, :, :, :4] = packed.numpy()
        for number, numbers in enumerate((steps, lowest)):
            laid_out = numbers.view(panels, LANES, groups).transpose(1, 2).contiguous()
            halves = laid_out.view(torch.uint8).view(panels, groups, 32)
            self.weight[layer, :, :, 4, 32 * number : 32 * (number + 1)] = halves.numpy()


def padded(number: int, step: int) -> int:
    """`number`, or the next multiple of `step`."""
    return -(-number // step) * step
