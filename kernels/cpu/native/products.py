"""Products of 8-bit integers over tiles of registers.

Weights lie in panels of 16 outputs: [panel, in / 4, 16, 4], so that one load brings four inputs of
16 outputs to the lanes of VPDPBUSD. Activations are unsigned with zero point 128, which is taken
back at the end: 128 · Σ w is subtracted from each sum. Sums are integers, hence exact and the same
in any order: a row's product does not depend on the rows beside it.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.native.compiled import inlined
from kernels.cpu.native.vectors import FLOATS, I32, INTS, LANES, Emitter, const

#: Panels of one tile. Three times eight rows fill 24 of the 32 vector registers with sums.
PANELS = 3
#: Outputs that a claim of work holds at least; widths are padded to it.
WIDTH = PANELS * LANES


def _tile(rows: int, add: bool) -> Any:
    """A kernel of `rows` rows and `PANELS` panels that stores y, or adds it to what is there."""
    # A few rows have too few sums to hide the latency of a product: two sets take turns.
    sets = 1 if rows * PANELS >= 12 else 2

    @intrinsic
    def tile(
        typing, x, x_stride, weight, panel_stride, steps, out, out_stride, scales, zeros, row_scales
    ):
        """x: uint8 [rows, 4 · steps]; out: float32 [rows, WIDTH]; strides in bytes."""

        def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            e = Emitter(builder, bf16=False)
            x, x_stride, weight, panel_stride, steps, out, out_stride = arguments[:7]
            scales, zeros, row_scales = arguments[7:]
            none = ir.Constant(INTS, [0] * LANES)
            sums = [
                [[e.variable(none) for _ in range(PANELS)] for _ in range(rows)]
                for _ in range(sets)
            ]
            xs = [e.at(x, builder.mul(x_stride, const(row))) for row in range(rows)]
            panels = [
                e.at(weight, builder.mul(panel_stride, const(panel))) for panel in range(PANELS)
            ]
            with e.loop(builder.udiv(steps, const(sets))) as turn:
                for number in range(sets):
                    step = e.at(e.times(turn, sets), number)
                    loaded = [e.load(INTS, e.at(panel, e.times(step, 64))) for panel in panels]
                    for row in range(rows):
                        four = e.splat(e.load(I32, e.at(xs[row], e.times(step, 4))))
                        for panel, values in enumerate(loaded):
                            total = sums[number][row][panel]
                            e.set(total, e.dot_bytes(e.get(total), four, values))
            for panel in range(PANELS):
                scale = e.load(FLOATS, e.at(scales, 64 * panel))
                zero = e.load(INTS, e.at(zeros, 64 * panel))
                for row in range(rows):
                    total = e.get(sums[0][row][panel])
                    for other in sums[1:]:
                        total = builder.add(total, e.get(other[row][panel]))
                    y = builder.sitofp(builder.sub(total, zero), FLOATS)
                    of_row = e.splat(e.load(ir.FloatType(), e.at(row_scales, 4 * row)))
                    both = builder.fmul(scale, of_row)
                    to = e.at(out, builder.mul(out_stride, const(row)), 64 * panel)
                    y = e.fma(y, both, e.load(FLOATS, to)) if add else builder.fmul(y, both)
                    e.store(y, to)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 10), emit

    return tile


_store_8, _store_4, _store_2, _store_1 = (_tile(rows, False) for rows in (8, 4, 2, 1))
_add_8, _add_4, _add_2, _add_1 = (_tile(rows, True) for rows in (8, 4, 2, 1))


@inlined
def product(
    x, x_stride, weight, inputs, first, last, rows, out, out_stride, scales, zeros, row_scales, add
):
    """Columns [first, last) of y = x Wᵀ, in multiples of `WIDTH`; all arguments are addresses or
    integers.

    Args:
        x: uint8 rows of `x_stride` bytes, `inputs` used.
        weight: int8 [outputs / 16, inputs / 4, 16, 4]; inputs is a multiple of 8.
        out: float32 rows of `out_stride` bytes. scales: float32 [outputs], what a weight's one is
            worth. zeros: int32 [outputs], 128 · Σ w. row_scales: float32 [rows].
        add: whether y is added to `out`.
    """
    panel = inputs * LANES
    steps = inputs // 4
    for column in range(first, last, WIDTH):
        w = weight + column // LANES * panel
        to = out + column * 4
        s, z = scales + column * 4, zeros + column * 4
        row = 0
        while row < rows:
            left = rows - row
            a, o, r = x + row * x_stride, to + row * out_stride, row_scales + row * 4
            if add:
                if left >= 8:
                    _add_8(a, x_stride, w, panel, steps, o, out_stride, s, z, r)
                    row += 8
                elif left >= 4:
                    _add_4(a, x_stride, w, panel, steps, o, out_stride, s, z, r)
                    row += 4
                elif left >= 2:
                    _add_2(a, x_stride, w, panel, steps, o, out_stride, s, z, r)
                    row += 2
                else:
                    _add_1(a, x_stride, w, panel, steps, o, out_stride, s, z, r)
                    row += 1
            elif left >= 8:
                _store_8(a, x_stride, w, panel, steps, o, out_stride, s, z, r)
                row += 8
            elif left >= 4:
                _store_4(a, x_stride, w, panel, steps, o, out_stride, s, z, r)
                row += 4
            elif left >= 2:
                _store_2(a, x_stride, w, panel, steps, o, out_stride, s, z, r)
                row += 2
            else:
                _store_1(a, x_stride, w, panel, steps, o, out_stride, s, z, r)
                row += 1
