"""Kernels run compiled or interpreted, see `tests.triton_mode`."""

import pytest
import torch

from tests.triton_mode import kernel_device, skip_without_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_without_gpu(items)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return kernel_device()
