"""What the vectors compute, with the processor's own instructions and without them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kernels.cpu.native.vectors import has

if not has("avx512vnni"):
    pytest.skip("the processor has no AVX-512 VNNI", allow_module_level=True)

from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.native.vectors import INTS, LANES, Emitter


def compiled(emit_with: Callable[[Emitter, Any, Any, Any], None], bf16: bool) -> Any:
    """A function of the addresses of two operands and a result."""

    @intrinsic
    def kernel(typing, x, y, out):
        def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            emit_with(Emitter(builder, bf16), *arguments)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), emit

    @njit
    def call(x, y, out):
        kernel(x.ctypes.data, y.ctypes.data, out.ctypes.data)

    return call


MODES = [False, pytest.param(True, marks=pytest.mark.skipif(not has("avx512bf16"), reason="none"))]


@pytest.mark.parametrize("bf16", MODES)
def test_dot_of_pairs(bf16: bool) -> None:
    def emit(e: Emitter, x: Any, y: Any, out: Any) -> None:
        e.store(e.dot_pairs(e.floats(1.0), e.load(INTS, x), e.load(INTS, y)), out)

    x, y = torch.randn(2, 2 * LANES).bfloat16()
    out = np.zeros(LANES, np.float32)
    compiled(emit, bf16)(x.view(torch.int16).numpy(), y.view(torch.int16).numpy(), out)
    wanted = 1 + (x.double() * y.double()).view(LANES, 2).sum(1)
    np.testing.assert_allclose(out, wanted.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bf16", MODES)
def test_packed_pairs_are_rounded_as_torch_rounds(bf16: bool) -> None:
    def emit(e: Emitter, x: Any, y: Any, out: Any) -> None:
        from kernels.cpu.native.vectors import FLOATS

        e.store(e.pack_pairs(e.load(FLOATS, x), e.load(FLOATS, y)), out)

    x, y = torch.randn(2, LANES) * torch.logspace(-20, 20, LANES)
    out = np.zeros(2 * LANES, np.int16)
    compiled(emit, bf16)(x.numpy(), y.numpy(), out)
    assert torch.equal(torch.from_numpy(out).view(torch.bfloat16), torch.cat((x, y)).bfloat16())


def test_powers_of_two() -> None:
    def emit(e: Emitter, x: Any, y: Any, out: Any) -> None:
        from kernels.cpu.native.vectors import FLOATS

        e.store(e.exp2(e.load(FLOATS, x)), out)

    function = compiled(emit, False)
    for low in (-1.0, -30.0, -125.0):
        x = np.linspace(low, 0, LANES).astype(np.float32)
        out = np.zeros(LANES, np.float32)
        function(x, x, out)
        np.testing.assert_allclose(out, np.exp2(x.astype(np.float64)), rtol=3e-7)
    x = np.full(LANES, -1e38, np.float32)
    function(x, x, out)
    assert (out == 0).all()
