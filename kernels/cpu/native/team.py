"""A few threads that compute one step together.

A step is a list of phases, a phase a number of pieces of work. Threads claim pieces one by one, so
whoever comes late, or has lost its core to another process, holds up nobody but for the piece it is
at. The next phase begins when all pieces of the one before are done. Waiting threads spin for some
microseconds and then offer their core to others.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.native.compiled import inlined
from kernels.cpu.native.vectors import I32, I64

#: int64 per phase: the next piece to claim and the pieces done, each in a cache line of its own.
PHASE = 16
_DONE = 8
#: Looks at a phase before a waiting thread yields; about ten microseconds.
_SPINS = 400


@intrinsic
def add_to(typing, counters, index, amount):
    """Atomically add to an element of an int64 array; returns what it was."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(counters, types.intp, types.int64), emit


@intrinsic
def read(typing, counters, index):
    """Atomically read an element of an int64 array."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(builder.gep(array.data, [arguments[1]]), "acquire", 8)

    return types.int64(counters, types.intp), emit


@intrinsic
def _pause(typing):
    """Tell the core that this thread only waits."""

    def emit(context: Any, builder: Any, _: Any, __: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), []
        )
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def _give_way(typing):
    """Let another process have the core, if one wants it."""

    def emit(context: Any, builder: Any, _: Any, __: Any) -> Any:
        kind = ir.FunctionType(I32, [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def ticks(typing):
    """The processor's clock: counts up at a constant rate."""

    def emit(context: Any, builder: Any, _: Any, __: Any) -> Any:
        kind = ir.FunctionType(I64, [])
        name = "llvm.readcyclecounter"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])

    return types.int64(), emit


@inlined
def claim(counters, phase, pieces):
    """The next piece of a phase for this thread, or -1 when all are taken."""
    if read(counters, phase * PHASE) >= pieces:
        return -1
    piece = add_to(counters, phase * PHASE, 1)
    return piece if piece < pieces else -1


@inlined
def next_claim(counters, phase, pieces):
    """This thread has finished a piece; what it gets next, as `claim`."""
    add_to(counters, phase * PHASE + _DONE, 1)
    return claim(counters, phase, pieces)


@inlined
def join(counters, phase, pieces):
    """Wait until every piece of a phase is done."""
    spins = 0
    while read(counters, phase * PHASE + _DONE) < pieces:
        spins += 1
        if spins < _SPINS:
            _pause()
        else:
            _give_way()
