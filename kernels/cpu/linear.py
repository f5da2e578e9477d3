"""Matrix products with weights that were laid out for oneDNN once."""

from typing import Literal

import torch
import torch.nn.functional as F

#: Laying weights out for this many rows suits decoding and costs prefill nothing.
_ROWS_HINT = 16


class PackedLinear:
    """y = x Wᵀ + b, alone or with what comes next folded in.

    In float32 a row's result is the same to the bit whatever other rows are computed with it:
    oneDNN's kernels sum each element in one order, except for a single row, which is never
    computed alone therefore. In bfloat16 that holds but for processors with AMX, where oneDNN cuts
    the sums by the number of rows; the error is that of rounding to bfloat16 all the same. What is
    folded in is computed in float32, before the one rounding to the weight's dtype. Where oneDNN
    has no kernels for the dtype (bfloat16 without AVX-512), torch's plain ones compute.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take over `weight` [out, in] and `bias` [out], both float32 or both bfloat16."""
        self._bias = bias
        self._packed = _has_kernels(weight.dtype)
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT) if self._packed else weight
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` [rows, in] to y [rows, out], in the weight's dtype."""
        return self._unary(x, "none")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """silu(y)."""
        return self._unary(x, "swish")

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """gelu(y), by its approximation with tanh."""
        return self._unary(x, "gelu")

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """y + `other` [rows, out]."""
        return self._binary(x, other, "add")

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """y · `other` [rows, out], element by element."""
        return self._binary(x, other, "mul")

    def _unary(self, x: torch.Tensor, then: str) -> torch.Tensor:
        if not self._packed:
            plain = F.linear(x, self._weight, self._bias)
            if then == "gelu":
                return F.gelu(plain, approximate="tanh")
            return F.silu(plain) if then == "swish" else plain
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            _paired(x), self._weight, self._bias, then, [], "tanh" if then == "gelu" else ""
        )
        return y[: x.shape[0]]

    def _binary(self, x: torch.Tensor, other: torch.Tensor, then: str) -> torch.Tensor:
        if not self._packed:
            plain = F.linear(x, self._weight, self._bias)
            return plain + other if then == "add" else plain * other
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            _paired(x), _paired(other), self._weight, self._bias, then
        )
        return y[: x.shape[0]]


class PackedGate:
    """act(gate(x)) · up(x)."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: Literal["silu", "gelu_tanh"] = "silu",
    ) -> None:
        """Take over `weight` [2 · ffn, in] and `bias` [2 · ffn], the gate's before up's."""
        weights = weight.chunk(2)
        biases = (None, None) if bias is None else bias.chunk(2)
        self._gate, self._up = map(PackedLinear, weights, biases)
        self._activate = self._gate.silu if activation == "silu" else self._gate.gelu

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` [rows, in] to [rows, ffn]; activation and product are part of the sums."""
        return self._up.times(x, self._activate(x))


def _has_kernels(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and computes in `dtype` on this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype is torch.float32 or supported


def _paired(x: torch.Tensor) -> torch.Tensor:
    """`x`, or two of its only row."""
    return x.expand(2, -1).contiguous() if x.shape[0] == 1 else x
