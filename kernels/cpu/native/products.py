"""Products of rows with a weight matrix, over tiles of registers.

Weights lie in panels of 16 outputs, in one of three formats (see `matrix`):

- BYTES, [panel, inputs / 4, 64]: one load brings four 8-bit inputs of 16 outputs to the lanes of a
  dot product. HALVES, [panel, inputs / 2, 64]: the same with two of bfloat16.
- NIBBLES, [panel, inputs / 32, 5, 64]: groups of 32 inputs in 4 bits, 0 to 15, each group with a
  step and a lowest value. A byte's low half belongs to four inputs, its high half to the next four.

Beside 8-bit and 4-bit weights activations are bytes with zero point 128, which is taken back at the
end. Sums of integers are exact, sums of float32 are taken in the order of the inputs. Either way a
row's product does not depend on the rows beside it.
"""

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.native.compiled import inlined
from kernels.cpu.native.vectors import BF16, F32, FLOATS, I32, INTS, LANES, Emitter, const

#: Formats of weights.
BYTES, HALVES, NIBBLES = 0, 1, 2
#: Inputs of a group of 4-bit weights.
GROUP = 32
#: Panels of one tile. Three times eight rows fill 24 of the 32 vector registers with sums.
PANELS = 3
#: Outputs that a claim of work holds at least; widths are padded to it.
WIDTH = PANELS * LANES


def _sources(e: Emitter, rows: int, x: Any, x_stride: Any, weight: Any, stride: Any) -> Any:
    """Where each row and each panel begins."""
    xs = [e.at(x, e.b.mul(x_stride, const(row))) for row in range(rows)]
    return xs, [e.at(weight, e.b.mul(stride, const(panel))) for panel in range(PANELS)]


def _targets(e: Emitter, rows: int, out: Any, out_stride: Any, add: Any) -> Iterator[Any]:
    """Row, panel, where their y goes, and what is added to it."""
    adds = e.b.icmp_signed("!=", add, const(0))
    for row in range(rows):
        for panel in range(PANELS):
            to = e.at(out, e.b.mul(out_stride, const(row)), 64 * panel)
            yield row, panel, to, e.b.select(adds, e.load(FLOATS, to), e.floats(0.0))


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
            none = e.floats(0.0) if halves else ir.Constant(INTS, [0] * LANES)
            dot = e.dot_pairs if halves else e.dot_bytes
            sums = [[e.variable(none) for _ in range(PANELS)] for _ in range(rows)]
            xs, panels = _sources(e, rows, x, x_stride, weight, panel_stride)
            with e.loop(steps) as step:
                loaded = [e.load(INTS, e.at(panel, e.times(step, 64))) for panel in panels]
                for row in range(rows):
                    four = e.splat(e.load(I32, e.at(xs[row], e.times(step, 4))))
                    for total, values in zip(sums[row], loaded, strict=True):
                        e.set(total, dot(e.get(total), four, values))
            for row, panel, to, before in _targets(e, rows, out, out_stride, add):
                y = e.get(sums[row][panel])
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


def _nibble_tile(rows: int) -> Any:
    """A kernel of `rows` rows and `PANELS` panels of 4-bit weights."""

    @intrinsic
    def tile(
        typing,
        x,
        x_stride,
        weight,
        panel_stride,
        groups,
        out,
        out_stride,
        add,
        constants,
        sums,
        row_scales,
    ):
        """As the other tiles; constants: float32 [WIDTH], sums: what `product` says."""

        def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            e = Emitter(builder, BF16)
            x, x_stride, weight, panel_stride, groups, out, out_stride, add = arguments[:8]
            constants, sums, row_scales = arguments[8:]
            xs, panels = _sources(e, rows, x, x_stride, weight, panel_stride)
            starts = [e.load(FLOATS, e.at(constants, 64 * panel)) for panel in range(PANELS)]
            totals = [[e.variable(start) for start in starts] for _ in range(rows)]
            with e.loop(groups) as group:
                here = [e.at(panel, e.times(group, 320)) for panel in panels]
                none = ir.Constant(INTS, [0] * LANES)
                dots = [[e.variable(none) for _ in range(PANELS)] for _ in range(rows)]
                for pair in range(4):
                    both = [e.load(INTS, e.at(panel, 64 * pair)) for panel in here]
                    for half in range(2):
                        values = [e.nibbles(b, high=bool(half)) for b in both]
                        at = e.at(e.times(group, GROUP), 8 * pair + 4 * half)
                        for row in range(rows):
                            four = e.splat(e.load(I32, e.at(xs[row], at)))
                            for dot, value in zip(dots[row], values, strict=True):
                                e.set(dot, e.dot_bytes(e.get(dot), four, value))
                steps = [e.load_half(e.at(panel, 256)) for panel in here]
                lowest = [e.load_half(e.at(panel, 288)) for panel in here]
                for row in range(rows):
                    at = e.at(sums, builder.mul(e.times(groups, 4), const(row)), e.times(group, 4))
                    of_group = e.splat(e.load(F32, at))
                    for panel in range(PANELS):
                        dot = builder.sitofp(e.get(dots[row][panel]), FLOATS)
                        total = e.fma(dot, steps[panel], e.get(totals[row][panel]))
                        e.set(totals[row][panel], e.fma(of_group, lowest[panel], total))
            for row, panel, to, before in _targets(e, rows, out, out_stride, add):
                scale = e.splat(e.load(F32, e.at(row_scales, 4 * row)))
                e.store(e.fma(e.get(totals[row][panel]), scale, before), to)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 11), emit

    return tile


def _by_tiles(tile_8: Any, tile_4: Any, tile_2: Any, tile_1: Any) -> Any:
    """A function that covers any number of rows with tiles. `second` is the table after the scales;
    a row of it takes `second_step` bytes, 0 if all rows have the same.
    """

    @inlined
    def by_tiles(
        x,
        x_stride,
        weight,
        panel,
        steps,
        rows,
        out,
        out_stride,
        add,
        scales,
        second,
        second_step,
        row_scales,
    ):
        row = 0
        while row < rows:
            left = rows - row
            a, o, r = x + row * x_stride, out + row * out_stride, row_scales + row * 4
            z = second + row * second_step
            if left >= 8:
                tile_8(a, x_stride, weight, panel, steps, o, out_stride, add, scales, z, r)
                row += 8
            elif left >= 4:
                tile_4(a, x_stride, weight, panel, steps, o, out_stride, add, scales, z, r)
                row += 4
            elif left >= 2:
                tile_2(a, x_stride, weight, panel, steps, o, out_stride, add, scales, z, r)
                row += 2
            else:
                tile_1(a, x_stride, weight, panel, steps, o, out_stride, add, scales, z, r)
                row += 1

    return by_tiles


_bytes, _halves = (
    _by_tiles(*[_tile(rows, halves) for rows in (8, 4, 2, 1)]) for halves in (False, True)
)
_nibble_4, _nibble_2, _nibble_1 = (_nibble_tile(rows) for rows in (4, 2, 1))


@inlined
def _nibble_8(
    x, x_stride, weight, panel, groups, out, out_stride, add, constants, sums, row_scales
):
    """Eight rows at once would need twice the registers there are."""
    for row in range(0, 8, 4):
        a, o, r = x + row * x_stride, out + row * out_stride, row_scales + row * 4
        n = sums + row * groups * 4
        _nibble_4(a, x_stride, weight, panel, groups, o, out_stride, add, constants, n, r)


_nibbles = _by_tiles(_nibble_8, _nibble_4, _nibble_2, _nibble_1)


@inlined
def product(
    form,
    x,
    x_stride,
    weight,
    panel,
    steps,
    first,
    last,
    rows,
    out,
    out_stride,
    scales,
    zeros,
    row_scales,
    sums,
    add,
):
    """Columns [first, last) of y = x Wᵀ, in multiples of `WIDTH`; addresses and integers.

    Args:
        form: BYTES, HALVES or NIBBLES.
        x: rows of `x_stride` bytes: uint8, or bfloat16 beside HALVES.
        weight: panels of `panel` bytes, in `steps` loads or groups.
        out: float32 rows of `out_stride` bytes.
        scales: float32 [outputs], what a byte's one is worth; beside NIBBLES what is added to each
            sum for the zero point.
        zeros: int32 [outputs], 128 · Σ w of BYTES.
        row_scales: float32 [rows], what a one of x is worth; not read beside HALVES.
        sums: float32 [rows, steps], Σ (x - 128) over each group of NIBBLES.
        add: 1 if y is added to `out`, 0 if it takes the place of what is there.
    """
    for column in range(first, last, WIDTH):
        w, o = weight + column // LANES * panel, out + column * 4
        s, z, r = scales + column * 4, zeros + column * 4, row_scales
        if form == HALVES:
            _halves(x, x_stride, w, panel, steps, rows, o, out_stride, add, s, z, 0, r)
        elif form == BYTES:
            _bytes(x, x_stride, w, panel, steps, rows, o, out_stride, add, s, z, 0, r)
        else:
            n = steps * 4
            _nibbles(x, x_stride, w, panel, steps, rows, o, out_stride, add, s, sums, n, r)
