"""Matrix products in 8-bit integers: weights quantised once per output, activations once per row.

Activations are unsigned with zero point 128, because signed ones fall to a reference path that is a
hundred times slower. Sums are integers, hence exact: a row's product does not depend on its mates.
"""

import torch

from kernels.reference import silu_gate

_ZERO_POINT = 128
_LARGEST = 127.0


def available() -> bool:
    """Whether this processor multiplies 8-bit integers fast enough to be worth it."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported()  # type: ignore[no-untyped-call]


class Int8Linear:
    """y = x Wᵀ + b in bfloat16, over integers inside."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Quantise `weight` [out, in] and keep `bias` [out]; both of any float dtype."""
        weight = weight.float()
        scales = weight.abs().amax(1).clamp_min(1e-12) / _LARGEST
        quantised = (weight / scales[:, None]).round().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(quantised, None)
        self._scales = scales
        self._zeros = torch.zeros(weight.shape[0], dtype=torch.int32)
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` [rows, in] to y [rows, out]."""
        product, scales = self._product(x)
        if self._bias is not None:
            return torch.addcmul(self._bias, product, scales).to(x.dtype)
        return product.mul_(scales).to(x.dtype)

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """y + `other` [rows, out], rounded once."""
        product, scales = self._product(x)
        if self._bias is not None:
            other = other + self._bias
        return product.mul_(scales).add_(other).to(x.dtype)

    def _product(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [rows, out] without bias, and what each row is to be multiplied by, [rows, 1].

        A scale for each row, rather than one for all, keeps rows independent; the library knows
        only one, which therefore is 1.
        """
        largest = torch.linalg.vector_norm(x, torch.inf, dim=1, keepdim=True, dtype=torch.float32)
        scales = largest.clamp_min_(1e-12).div_(_LARGEST)
        quantised = (x / scales).add_(_ZERO_POINT + 0.5).to(torch.uint8)
        product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            quantised,
            1.0,
            _ZERO_POINT,
            self._weight,
            self._scales,
            self._zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return product, scales


class Int8Gate:
    """silu(gate(x)) · up(x), one product for both."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Quantise `weight` [2 · ffn, in], keep `bias` [2 · ffn]; the gate's stand before up's."""
        self._both = Int8Linear(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `x` [rows, in] to [rows, ffn]."""
        return silu_gate(self._both(x))
