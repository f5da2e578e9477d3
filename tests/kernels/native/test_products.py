"""Products of 8-bit integers are exact, whatever the number of rows."""

import numpy as np
import pytest
import torch

from kernels.cpu.native.vectors import has

if not has("avx512vnni"):
    pytest.skip("the processor has no AVX-512 VNNI", allow_module_level=True)

from numba import njit

from kernels.cpu.native.matrix import Matrix
from kernels.cpu.native.products import BYTES, GROUP, HALVES, NIBBLES, product
from kernels.cpu.native.rows import quantise, sum_groups


@njit
def multiply(form, x, scales, weight, of_output, zeros, sums, out, add):
    product(
        form,
        x.ctypes.data,
        x.shape[1],
        weight.ctypes.data,
        weight.strides[0],
        weight.shape[1],
        0,
        len(of_output),
        len(x),
        out.ctypes.data,
        out.shape[1] * 4,
        of_output.ctypes.data,
        zeros.ctypes.data,
        scales.ctypes.data,
        sums.ctypes.data,
        add,
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 16, 23])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (50, 36), (17, 200)])
def test_equals_integer_sums(rows: int, outputs: int, inputs: int) -> None:
    chance = np.random.default_rng(rows)
    weight = torch.randn(outputs, inputs)
    matrix = Matrix.empty(BYTES, 1, outputs, inputs)
    matrix.put(0, weight)
    steps = (weight / torch.from_numpy(matrix.scales[0, :outputs, None])).round().long().numpy()
    deep = matrix.weight.shape[2] * 4
    laid_out = matrix.weight[0], matrix.scales[0], matrix.zeros[0], np.zeros(1, np.float32)
    x = chance.integers(0, 256, (rows, deep + 16)).astype(np.uint8)  # garbage behind the inputs
    scales = chance.random(rows, np.float32)
    wide = matrix.scales.shape[1]
    before = chance.random((rows, wide), np.float32)
    sums = (x[:, :inputs].astype(np.int64) - 128) @ steps.T
    wanted = sums.astype(np.float32) * (matrix.scales[0, :outputs] * scales[:, None])
    for add in (0, 1):
        out = before.copy()
        multiply(BYTES, x, scales, *laid_out, out, add)
        expected = wanted + before[:, :outputs] * add
        np.testing.assert_allclose(out[:, :outputs], expected, rtol=2e-6, atol=1e-4)
        alone = before.copy()
        for row in range(rows):
            one = slice(row, row + 1)
            multiply(BYTES, x[one], scales[one], *laid_out, alone[one], add)
        assert (alone == out).all(), "no bit depends on the rows beside"


@pytest.mark.parametrize("rows", [1, 3, 8, 23])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (50, 36), (17, 201)])
def test_halves_equal_sums_in_float64(rows: int, outputs: int, inputs: int) -> None:
    weight, x = torch.randn(outputs, inputs), torch.randn(rows, inputs)
    matrix = Matrix.empty(HALVES, 1, outputs, inputs)
    matrix.put(0, weight)
    held = torch.zeros(rows, matrix.weight.shape[2] * 2, dtype=torch.bfloat16)
    held[:, :inputs] = x
    bits = held.view(torch.uint8).numpy()
    before = np.random.default_rng(1).random((rows, matrix.scales.shape[1]), np.float32)
    wanted = (x.bfloat16().double() @ weight.bfloat16().double().T).numpy()
    none = np.zeros(1, np.float32)
    laid_out = matrix.weight[0], matrix.scales[0], matrix.zeros[0], np.zeros(1, np.float32)
    for add in (0, 1):
        out = before.copy()
        multiply(HALVES, bits, none, *laid_out, out, add)
        expected = wanted + before[:, :outputs] * add
        np.testing.assert_allclose(out[:, :outputs], expected, rtol=1e-4, atol=1e-4)
        for row in range(rows):
            one, alone = slice(row, row + 1), before.copy()[row : row + 1]
            multiply(HALVES, bits[one], none, *laid_out, alone, add)
            assert (alone == out[one]).all(), "no bit depends on the rows beside"


@njit
def sums_of(x, inputs, groups, out):
    for row in range(len(x)):
        sum_groups(x[row], inputs, out[row * groups : (row + 1) * groups])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (50, 36), (17, 200)])
def test_nibbles_equal_sums_in_float64(rows: int, outputs: int, inputs: int) -> None:
    """Weights on a grid of 16 values in each group keep their values, and so do others nearly."""
    chance = np.random.default_rng(rows)
    groups = -(-inputs // GROUP)
    steps = torch.rand(outputs, groups).half().float() + 0.5
    grid = torch.randint(0, 16, (outputs, groups, GROUP))
    grid[..., 0], grid[..., 1] = 0, 15
    weight = ((grid - 7) * steps.half().float()[..., None]).reshape(outputs, -1)[:, :inputs]
    matrix = Matrix.empty(NIBBLES, 1, outputs, inputs)
    matrix.put(0, weight)
    x = chance.integers(0, 256, (rows, groups * GROUP)).astype(np.uint8)
    scales = chance.random(rows, np.float32)
    sums = np.zeros(rows * groups, np.float32)
    sums_of(x, inputs, groups, sums)
    laid_out = matrix.weight[0], matrix.scales[0], matrix.zeros[0]
    before = chance.random((rows, matrix.scales.shape[1]), np.float32)
    wanted = ((x[:, :inputs].astype(np.float64) - 128) @ weight.double().numpy().T) * scales[
        :, None
    ]
    size = np.abs(wanted).max()
    for add in (0, 1):
        out = before.copy()
        multiply(NIBBLES, x, scales, *laid_out, sums, out, add)
        expected = wanted + before[:, :outputs] * add
        np.testing.assert_allclose(out[:, :outputs], expected, rtol=0, atol=2e-3 * size)
        for row in range(rows):
            one, alone = slice(row, row + 1), before.copy()[row : row + 1]
            own = sums[row * groups : (row + 1) * groups]
            multiply(NIBBLES, x[one], scales[one], *laid_out, own, alone, add)
            assert (alone == out[one]).all(), "no bit depends on the rows beside"


def test_quantised_rows() -> None:
    x = np.linspace(-3, 5, 77).astype(np.float32)
    out = np.zeros(80, np.uint8)
    scale = quantise(x, len(x), out)
    assert np.abs((out[:77].astype(np.float32) - 128) * scale - x).max() <= scale / 2 + 1e-6
    assert out[:77].max() == 255
    assert quantise(np.zeros(8, np.float32), 8, out) > 0
    assert (out[:8] == 128).all()
