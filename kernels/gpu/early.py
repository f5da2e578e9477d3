"""Kernels that are launched while the one before still runs.

Such a kernel waits, once started, until everything before it has ended and written its results; the
time between two kernels is spent on starting instead of doing nothing.
"""

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def take_turn(EARLY: tl.constexpr):
    """Wait for the kernel before and let the next one start; to be called before any access."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@functools.cache
def starts_early(device: torch.device) -> bool:
    """Whether kernels on `device` can be launched so (compute capability 9 on)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
