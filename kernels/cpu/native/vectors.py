"""512-bit vectors in LLVM, for the inner loops that no compiler finds by itself.

A kernel is a Python function that emits LLVM instructions while numba compiles its caller.
`Emitter` gives it loads, broadcasts, dot products and exponentials; loops over registers are Python
loops and hence unrolled, loops over data are `Emitter.loop`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils

I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
LANES = 16
INTS = ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)
_BYTES = ir.VectorType(I8, 64)

#: 2^f on [-0.5, 0.5], relative error 2e-7 (Taylor, lowest order first).
_EXP2 = (1.0, 0.6931471805599453, 0.2402265069591007, 0.0555041086648216, 0.0096181291076285)
_EXP2_LAST = (0.0013333558146428, 0.0001540353039338)


def has(feature: str) -> bool:
    """Whether this processor has an extension, by LLVM's name for it."""
    return bool(binding.get_host_cpu_features().get(feature, False))


#: Whether the processor multiplies pairs of bfloat16 itself.
BF16 = has("avx512bf16")


class Emitter:
    """Emits instructions at numba's builder; addresses are byte addresses in 64-bit integers."""

    def __init__(self, builder: Any, bf16: bool) -> None:
        """`bf16`: the processor has AVX-512 BF16; without it pairs are multiplied in float32."""
        self.b = builder
        self._bf16 = bf16

    # -- addresses and memory ----------------------------------------------------------------------

    def at(self, base: Any, *offsets: Any) -> Any:
        """`base` plus offsets in bytes, Python integers or emitted ones."""
        for offset in offsets:
            base = self.b.add(base, const(offset) if isinstance(offset, int) else offset)
        return base

    def times(self, value: Any, factor: int) -> Any:
        """A 64-bit integer times a constant."""
        return self.b.mul(value, const(factor))

    def load(self, kind: Any, address: Any) -> Any:
        """A value of LLVM type `kind`; need not be aligned."""
        value = self.b.load(self.b.inttoptr(address, kind.as_pointer()))
        value.align = 4
        return value

    def store(self, value: Any, address: Any) -> None:
        """Write `value`; need not be aligned."""
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer())).align = 4

    def index(self, address: Any) -> Any:
        """An int32 in memory, as a 64-bit integer."""
        return self.b.sext(self.load(I32, address), I64)

    def variable(self, initial: Any) -> Any:
        """A register that changes in loops."""
        slot = cgutils.alloca_once(self.b, initial.type)
        self.b.store(initial, slot)
        return slot

    def get(self, variable: Any) -> Any:
        """Its present value."""
        return self.b.load(variable)

    def set(self, variable: Any, value: Any) -> None:
        """Its next value."""
        self.b.store(value, variable)

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        """Repeat what is emitted inside `count` times; yields the counter from 0."""
        with cgutils.for_range(self.b, count) as loop:
            yield loop.index

    def load_half(self, address: Any) -> Any:
        """16 float16 in memory, as float32."""
        return self.b.fpext(self.load(ir.VectorType(ir.HalfType(), LANES), address), FLOATS)

    # -- vectors -----------------------------------------------------------------------------------

    def splat(self, value: Any) -> Any:
        """A vector of one 32-bit value."""
        kind = ir.VectorType(value.type, LANES)
        undefined = ir.Constant(kind, ir.Undefined)
        single = self.b.insert_element(undefined, value, ir.Constant(I32, 0))
        return self.b.shuffle_vector(single, undefined, ir.Constant(INTS, [0] * LANES))

    def floats(self, number: float) -> Any:
        """A constant vector."""
        return ir.Constant(FLOATS, [number] * LANES)

    def nibbles(self, x: Any, *, high: bool) -> Any:
        """The low or the high half of each byte, as bytes."""
        if high:
            x = self.b.lshr(x, ir.Constant(INTS, [4] * LANES))
        return self.b.and_(x, ir.Constant(INTS, [0x0F0F0F0F] * LANES))

    def dot_bytes(self, total: Any, unsigned: Any, signed: Any) -> Any:
        """int32 lanes plus sums of four products of bytes (VPDPBUSD)."""
        kind = ir.FunctionType(INTS, [INTS, _BYTES, _BYTES])
        call = self._intrinsic("llvm.x86.avx512.vpdpbusd.512", kind)
        as_bytes = [self.b.bitcast(v, _BYTES) for v in (unsigned, signed)]
        return self.b.call(call, [total, *as_bytes])

    def dot_pairs(self, total: Any, x: Any, y: Any) -> Any:
        """float32 lanes plus sums of two products of bfloat16 (VDPBF16PS, or two FMAs)."""
        if self._bf16:
            pairs = ir.VectorType(_bfloat(), 32)
            call = self._intrinsic(
                "llvm.x86.avx512bf16.dpbf16ps.512", ir.FunctionType(FLOATS, [FLOATS, pairs, pairs])
            )
            return self.b.call(call, [total, self.b.bitcast(x, pairs), self.b.bitcast(y, pairs)])
        for part in (self._odd, self._even):
            total = self.fma(part(x), part(y), total)
        return total

    def pack_pairs(self, low: Any, high: Any) -> Any:
        """32 bfloat16, rounded to nearest, from two vectors; as int32 lanes of two each."""
        if self._bf16:
            kind = ir.VectorType(_bfloat(), 32)
            call = self._intrinsic(
                "llvm.x86.avx512bf16.cvtne2ps2bf16.512", ir.FunctionType(kind, [FLOATS, FLOATS])
            )
            return self.b.bitcast(self.b.call(call, [high, low]), INTS)
        sixteen = ir.Constant(INTS, [16] * LANES)
        words = []
        for vector in (low, high):
            bits = self.b.bitcast(vector, INTS)
            odd = self.b.and_(self.b.lshr(bits, sixteen), ir.Constant(INTS, [1] * LANES))
            bits = self.b.add(bits, self.b.add(odd, ir.Constant(INTS, [0x7FFF] * LANES)))
            short = ir.VectorType(ir.IntType(16), LANES)
            words.append(self.b.trunc(self.b.lshr(bits, sixteen), short))
        order = ir.Constant(ir.VectorType(I32, 2 * LANES), list(range(2 * LANES)))
        return self.b.bitcast(self.b.shuffle_vector(*words, order), INTS)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """x · y + z, rounded once."""
        kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
        return self.b.call(self._intrinsic("llvm.fma.v16f32", kind), [x, y, z])

    def maximum(self, x: Any, y: Any) -> Any:
        """The larger of each lane."""
        return self.b.select(self.b.fcmp_ordered(">", x, y), x, y)

    def largest(self, x: Any) -> Any:
        """The largest lane."""
        call = self._intrinsic("llvm.vector.reduce.fmax.v16f32", ir.FunctionType(F32, [FLOATS]))
        return self.b.call(call, [x], fastmath=("nnan",))

    def total(self, x: Any) -> Any:
        """The sum of the lanes, in a tree."""
        kind = ir.FunctionType(F32, [F32, FLOATS])
        call = self._intrinsic("llvm.vector.reduce.fadd.v16f32", kind)
        return self.b.call(call, [ir.Constant(F32, 0.0), x], fastmath=("reassoc",))

    def exp2(self, x: Any) -> Any:
        """2^x for x <= 0; 0 below -126."""
        x = self.maximum(x, self.floats(-150.0))
        nearest = self._intrinsic("llvm.rint.v16f32", ir.FunctionType(FLOATS, [FLOATS]))
        whole = self.b.call(nearest, [x])
        part = self.b.fsub(x, whole)
        result = self.floats(_EXP2_LAST[1])
        for coefficient in (_EXP2_LAST[0], *reversed(_EXP2)):
            result = self.fma(result, part, self.floats(coefficient))
        whole = self.maximum(whole, self.floats(-127.0))
        exponent = self.b.add(self.b.fptosi(whole, INTS), ir.Constant(INTS, [127] * LANES))
        power = self.b.bitcast(self.b.shl(exponent, ir.Constant(INTS, [23] * LANES)), FLOATS)
        return self.b.fmul(result, power)

    def lanes_below(self, limit: Any, first: Any) -> Any:
        """Mask of the lanes whose number plus `first` is below `limit` (both int32)."""
        numbers = ir.Constant(INTS, list(range(LANES)))
        return self.b.icmp_signed("<", numbers, self.splat(self.b.sub(limit, first)))

    # -- inside ------------------------------------------------------------------------------------

    def _even(self, pairs: Any) -> Any:
        return self.b.bitcast(self.b.shl(pairs, ir.Constant(INTS, [16] * LANES)), FLOATS)

    def _odd(self, pairs: Any) -> Any:
        high = ir.Constant(INTS, [-65536] * LANES)
        return self.b.bitcast(self.b.and_(pairs, high), FLOATS)

    def _intrinsic(self, name: str, kind: Any) -> Any:
        return cgutils.get_or_insert_function(self.b.module, kind, name)


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def _bfloat() -> Any:
    return _BFloat()


def const(number: int) -> Any:
    """A 64-bit integer constant."""
    return ir.Constant(I64, number)
