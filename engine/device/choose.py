"""Which device a model runs on."""

from importlib.util import find_spec
from typing import Literal

import torch

from engine.errors import ModelError
from engine.libraries import how_to_install

DeviceSetting = Literal["auto", "cpu", "cuda"]


def choose_device(setting: DeviceSetting) -> torch.device:
    """The device for a setting; "auto" takes an accelerator only if it could be used.

    Raises:
        ModelError: "cuda" was asked for, and there is no such device, or no Triton to compile with.
    """
    if setting == "cpu":
        return torch.device("cpu")
    present, compiler = torch.cuda.is_available(), find_spec("triton") is not None
    if setting == "cuda" and not present:
        raise ModelError("device is 'cuda', but torch sees no such device; set device to 'cpu'")
    if setting == "cuda" and not compiler:
        raise ModelError(f"device 'cuda' needs Triton: {how_to_install('troupe-npc[gpu]')}")
    return torch.device("cuda" if present and compiler else "cpu")
