"""Matrix products with weights that were laid out for oneDNN once."""

import torch
import torch.nn.functional as F

#: Laying weights out for this many rows suits decoding and costs prefill nothing.
_ROWS_HINT = 16


class PackedLinear:
    """y = x Wᵀ + b.

    A row's result is the same to the bit whatever other rows are computed with it: oneDNN's kernels sum
    each element in one order, except for a single row, which therefore is never computed alone.

    Attributes:
        rows: features out.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take over `weight` [out, in] and `bias` [out], both float32 or both bfloat16."""
        self.rows = weight.shape[0]
        self._bias = bias
        self._packed = torch.backends.mkldnn.is_available()
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT) if self._packed else weight
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` [rows, in] to [rows, out], in the weight's dtype."""
        if x.shape[0] == 1:
            return self._product(x.expand(2, -1).contiguous())[:1]
        return self._product(x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed:
            result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self._bias, "none", [], ""
            )
            return result
        return F.linear(x, self._weight, self._bias)
