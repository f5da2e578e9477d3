"""What happens to one row between the products: norms, rotation, activation, quantisation."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.native.compiled import inlined, reordered
from kernels.cpu.native.products import GROUP
from kernels.cpu.native.vectors import BF16, F32, FLOATS, INTS, LANES, Emitter

_LARGEST = np.float32(127.0)
_TINY = np.float32(1e-12)
_ZERO_POINT = 128.5  # and a half, because the conversion to integers cuts


@intrinsic
def _largest(typing, x, vectors):
    """The largest absolute value of float32 [16 · vectors] at an address."""

    def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        e = Emitter(builder, BF16)
        x, vectors = arguments
        found = e.variable(e.floats(0.0))
        with e.loop(vectors) as number:
            value = e.load(FLOATS, e.at(x, e.times(number, 64)))
            value = builder.select(
                builder.fcmp_ordered("<", value, e.floats(0.0)), builder.fneg(value), value
            )
            e.set(found, e.maximum(e.get(found), value))
        return e.largest(e.get(found))

    return types.float32(types.intp, types.intp), emit


@intrinsic
def _quantise(typing, x, vectors, factor, out):
    """Bytes [16 · vectors] from float32: x · factor + 128, rounded."""

    def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        e = Emitter(builder, BF16)
        x, vectors, factor, out = arguments
        factors = e.splat(factor)
        with e.loop(vectors) as number:
            value = e.load(FLOATS, e.at(x, e.times(number, 64)))
            whole = builder.fptosi(e.fma(value, factors, e.floats(_ZERO_POINT)), INTS)
            short = builder.trunc(whole, ir.VectorType(ir.IntType(8), LANES))
            e.store(short, e.at(out, e.times(number, LANES)))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.float32, types.intp), emit


@inlined
def quantise(x, count, out):
    """Turn float32 x[:count] into unsigned bytes around 128; returns what one of them is worth."""
    vectors = count // LANES
    largest = max(_TINY, _largest(x.ctypes.data, vectors))
    for i in range(vectors * LANES, count):
        largest = max(largest, abs(x[i]))
    factor = _LARGEST / largest
    _quantise(x.ctypes.data, vectors, factor, out.ctypes.data)
    for i in range(vectors * LANES, count):
        out[i] = np.uint8(np.int32(x[i] * factor + np.float32(_ZERO_POINT)))
    return largest / _LARGEST


@inlined
def sum_groups(quantised, count, out):
    """Σ (x - 128) over each group of 32 of uint8 x[:count], as float32."""
    for group in range((count + GROUP - 1) // GROUP):
        total = np.int32(0)
        for i in range(group * GROUP, min((group + 1) * GROUP, count)):
            total += np.int32(quantised[i]) - 128
        out[group] = np.float32(total)


@inlined
def round_halves(x, count, out):
    """float32 x[:count] as bfloat16 bits."""
    for i in range(count):
        out[i] = to_bf16(x[i])


@reordered
def normalise(x, weight, count, eps, out):
    """RMSNorm (Zhang and Sennrich 2019) of x[:count] into out."""
    total = np.float32(0.0)
    for i in range(count):
        total += x[i] * x[i]
    factor = np.float32(1.0) / np.sqrt(total / np.float32(count) + eps)
    for i in range(count):
        out[i] = x[i] * factor * weight[i]


@intrinsic
def _silu_gate(typing, both, count, out):
    """See `silu_gate`; addresses."""

    def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        e = Emitter(builder, BF16)
        both, count, out = arguments
        one = e.floats(1.0)
        with e.loop(builder.sdiv(count, ir.Constant(count.type, LANES))) as number:
            step = e.times(number, 64)
            gate = e.load(FLOATS, e.at(both, step))
            up = e.load(FLOATS, e.at(both, step, e.times(count, 4)))
            # 1 / (1 + e^-g) from e^-|g|, which cannot overflow.
            negative = builder.fcmp_ordered("<", gate, e.floats(0.0))
            size = builder.select(negative, gate, builder.fneg(gate))
            small = e.exp2(builder.fmul(size, e.floats(1.4426950408889634)))
            above = builder.select(negative, small, one)
            sigmoid = builder.fdiv(above, builder.fadd(one, small))
            e.store(builder.fmul(builder.fmul(gate, sigmoid), up), e.at(out, step))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), emit


@inlined
def silu_gate(both, count, out):
    """silu(both[:count]) · both[count:2 · count] into out[:count]; count is a multiple of 16."""
    _silu_gate(both.ctypes.data, count, out.ctypes.data)


@intrinsic
def _bits(typing, value):
    """A float32's bits, as uint32."""

    def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), emit


@intrinsic
def _from_bits(typing, value):
    """The float32 of these bits."""

    def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], F32)

    return types.float32(types.uint32), emit


@inlined
def to_bf16(value):
    """A float32 rounded to the nearest bfloat16, as its 16 bits."""
    bits = _bits(np.float32(value))
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(rounded >> np.uint32(16))


@inlined
def from_bf16(half):
    """The float32 of a bfloat16's 16 bits."""
    return _from_bits(np.uint32(half) << np.uint32(16))


@inlined
def rotate(head, cos, sin, half):
    """Turn the pairs (i, i + half) of a head in place (Su et al. 2021, arXiv 2104.09864)."""
    for i in range(half):
        x, y = head[i], head[i + half]
        head[i] = x * cos[i] - y * sin[i]
        head[i + half] = y * cos[i] + x * sin[i]


@inlined
def store_query(head, dim, scale, out):
    """A head's query, scaled, as bfloat16."""
    for i in range(dim):
        out[i] = to_bf16(head[i] * scale)


@inlined
def store_key(head, dim, block, lane):
    """A token's key into lane `lane` of a block [dim / 2, 16, 2]."""
    for i in range(0, dim, 2):
        at = (i * LANES) + 2 * lane
        block[at] = to_bf16(head[i])
        block[at + 1] = to_bf16(head[i + 1])


@inlined
def store_value(head, dim, block, lane):
    """A token's value as number `lane` of a block [8, dim, 2]."""
    first = (lane >> 1) * 2 * dim + (lane & 1)
    for i in range(dim):
        block[first + 2 * i] = to_bf16(head[i])
