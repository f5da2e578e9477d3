"""Kernels that are launched while the one before still runs.

Such a kernel waits, once started, until everything before it has ended and written its results; the
time between two kernels is spent on starting, and on fetching weights, instead of doing nothing.
(Programmatic dependent launch, CUDA C++ Programming Guide.)
"""

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def let_start(EARLY: tl.constexpr):
    """Let the next kernel start. What this one does before `take_turn` it does beside the kernels
    before it: it may read tables and weights, which no kernel of a step writes.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def take_turn(EARLY: tl.constexpr):
    """Wait for the kernels before; to be called before any access to what they write."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def fetch(pointers):
    """Have the lines of memory that `pointers` lie in brought to the cache, before one's turn."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@functools.cache
def starts_early(device: torch.device) -> bool:
    """Whether kernels on `device` can be launched so (compute capability 9 on)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
