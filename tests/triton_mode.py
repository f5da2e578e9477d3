"""Kernels run compiled where there is a GPU, and in Triton's interpreter elsewhere.

Import this before any kernel: how a kernel runs is decided when it is defined.
"""

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch

INTERPRETED = not torch.cuda.is_available()

if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"

if INTERPRETED and find_spec("triton"):
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang_tensor

    def _patch_for_new_numpy(tensor: Any, scope: Any) -> None:
        """Triton 3.6 turns arrays of one element into loop bounds in a way NumPy 2.4 refuses."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_for_new_numpy


def skip_without_gpu(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("gpu") and INTERPRETED:
            item.add_marker(skip)


def kernel_device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
