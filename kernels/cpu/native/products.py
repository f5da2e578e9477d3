"""Products of rows with a weight matrix, over tiles of registers.

Weights lie in panels of 16 outputs: [panel, steps, 16, 4 bytes], so that one load brings the next
four bytes of 16 outputs to the lanes of a dot product. Four bytes are four 8-bit inputs or two of
bfloat16.

In 8 bits activations are unsigned with zero point 128, which is taken back at the end: 128 · Σ w is
subtracted from each sum. Sums are integers, hence exact. In bfloat16 they are float32 in the order
of the inputs. Either way a row's product does not depend on the rows beside it.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.native.compiled import inlined
from kernels.cpu.native.vectors import BF16, F32, FLOATS, I32, INTS, LANES, Emitter, const

#: Panels of one tile. Three times eight rows fill 24 of the 32 vector registers with sums.
PANELS = 3
#: Outputs that a claim of work holds at least; widths are padded to it.
WIDTH = PANELS * LANES


def _tile(rows: int, halves: bool) -> Any:
    """A kernel of `rows` rows and `PANELS` panels, of bfloat16 if `halves`."""

    @intrinsic
    def tile(
        typing,
        x,
        x_stride,
        weight,
        panel_stride,
        steps,
        out,
        out_stride,
        add,
        scales,
        zeros,
        row_scales,
    ):
        """x: [rows, 4 · steps bytes]; out: float32 [rows, WIDTH]; strides in bytes. y is stored, or
        added to what is there if `add` is not 0.
        """

        def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            e = Emitter(builder, BF16)
            x, x_stride, weight, panel_stride, steps, out, out_stride, add = arguments[:8]
            adds = builder.icmp_signed("!=", add, const(0))
            none = e.floats(0.0) if halves else ir.Constant(INTS, [0] * LANES)
            dot = e.dot_pairs if halves else e.dot_bytes
            sums = [[e.variable(none) for _ in range(PANELS)] for _ in range(rows)]
            xs = [e.at(x, builder.mul(x_stride, const(row))) for row in range(rows)]
            panels = [
                e.at(weight, builder.mul(panel_stride, const(panel))) for panel in range(PANELS)
            ]
            with e.loop(steps) as step:
                loaded = [e.load(INTS, e.at(panel, e.times(step, 64))) for panel in panels]
                for row in range(rows):
                    four = e.splat(e.load(I32, e.at(xs[row], e.times(step, 4))))
                    for total, values in zip(sums[row], loaded, strict=True):
                        e.set(total, dot(e.get(total), four, values))
            for panel in range(PANELS):
                for row in range(rows):
                    y = e.get(sums[row][panel])
                    to = e.at(out, builder.mul(out_stride, const(row)), 64 * panel)
                    before = builder.select(adds, e.load(FLOATS, to), e.floats(0.0))
                    if halves:
                        e.store(builder.fadd(y, before), to)
                        continue
                    scales, zeros = (e.at(a, 64 * panel) for a in arguments[8:10])
                    y = builder.sitofp(builder.sub(y, e.load(INTS, zeros)), FLOATS)
                    of_row = e.splat(e.load(F32, e.at(arguments[10], 4 * row)))
                    e.store(e.fma(y, builder.fmul(e.load(FLOATS, scales), of_row), before), to)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 11), emit

    return tile


def _by_tiles(tile_8: Any, tile_4: Any, tile_2: Any, tile_1: Any) -> Any:
    """A function that covers any number of rows with tiles."""

    @inlined
    def rows_of_panels(
        x, x_stride, weight, panel, steps, rows, out, out_stride, add, scales, zeros, row_scales
    ):
        row = 0
        while row < rows:
            left = rows - row
            a, o, r = x + row * x_stride, out + row * out_stride, row_scales + row * 4
            if left >= 8:
                tile_8(a, x_stride, weight, panel, steps, o, out_stride, add, scales, zeros, r)
                row += 8
            elif left >= 4:
                tile_4(a, x_stride, weight, panel, steps, o, out_stride, add, scales, zeros, r)
                row += 4
            elif left >= 2:
                tile_2(a, x_stride, weight, panel, steps, o, out_stride, add, scales, zeros, r)
                row += 2
            else:
                tile_1(a, x_stride, weight, panel, steps, o, out_stride, add, scales, zeros, r)
                row += 1

    return rows_of_panels


_bytes, _halves = (
    _by_tiles(*[_tile(rows, halves) for rows in (8, 4, 2, 1)]) for halves in (False, True)
)


@inlined
def product(
    x,
    x_stride,
    weight,
    steps,
    first,
    last,
    rows,
    out,
    out_stride,
    scales,
    zeros,
    row_scales,
    add,
    halves,
):
    """Columns [first, last) of y = x Wᵀ, in multiples of `WIDTH`; addresses and integers.

    Args:
        x: rows of `x_stride` bytes, 4 · `steps` used: uint8, or bfloat16 if `halves`.
        weight: [outputs / 16, steps, 16, 4 bytes], int8 or bfloat16.
        out: float32 rows of `out_stride` bytes.
        scales: float32 [outputs], what a weight's one is worth. zeros: int32 [outputs], 128 · Σ w.
            row_scales: float32 [rows]. None of the three is read if `halves`.
        add: 1 if y is added to `out`, 0 if it takes the place of what is there.
    """
    panel = steps * 64
    for column in range(first, last, WIDTH):
        w, o = weight + column // LANES * panel, out + column * 4
        s, z, r = scales + column * 4, zeros + column * 4, row_scales
        if halves:
            _halves(x, x_stride, w, panel, steps, rows, o, out_stride, add, s, z, r)
        else:
            _bytes(x, x_stride, w, panel, steps, rows, o, out_stride, add, s, z, r)
