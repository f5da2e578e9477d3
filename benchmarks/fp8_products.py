"""The products of a GPU's `fp8` weights, on a CPU: to see what eight bits change, no GPU is needed.

Weights and rows are rounded as there; their products are summed in float32, which is how the
device's matrix units sum but for the order.
"""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F

from engine.models import decoder as decoders
from engine.models.decoder import Decoder
from engine.weights.load import LoadedModel, load_model
from kernels.gpu.fp8 import quantise_weight


class Fp8Linear:
    """As `kernels.cpu.linear.PackedLinear`, by weights and rows in eight bits."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        rounded = quantise_weight(weight)
        self._weight, self._scale = rounded.data.float(), rounded.scale
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` [rows, in] to y [rows, out], rounded to bfloat16 as there, as float32."""
        rows = quantise_weight(x)  # like an output's weights: by the largest number
        y = F.linear(rows.data.float(), self._weight) * rows.scale[:, None] * self._scale
        y = y.bfloat16().float()
        return y if self._bias is None else y + self._bias

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """y + `other` [rows, out]."""
        return self(x) + other


class Fp8Gate:
    """As `kernels.cpu.linear.PackedGate`, with silu."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str = "silu",
    ) -> None:
        assert activation == "silu"
        self._both = Fp8Linear(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` [rows, in] to [rows, ffn]."""
        gate, up = self._both(x).chunk(2, -1)
        return F.silu(gate) * up


def load_fp8(source: str, data_dir: Path, exact: LoadedModel) -> LoadedModel:
    """The model whose layers compute as on a GPU with `quantization: fp8`; the head, which keeps
    its bits there, is that of `exact`.
    """
    with (
        mock.patch.object(decoders, "PackedLinear", Fp8Linear),
        mock.patch.object(decoders, "PackedGate", Fp8Gate),
    ):
        model = load_model(source, data_dir=data_dir, numerics="exact")
    decoder, original = model.decoder, exact.decoder
    assert isinstance(decoder, Decoder) and isinstance(original, Decoder)
    decoder._head = original._head
    return replace(model, decoder=decoder)
