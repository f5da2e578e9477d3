"""A script, a server and a command load a model in one way: every setting about it counts."""

from pathlib import Path
from typing import Any

import pytest

from engine import build
from engine.config import EngineConfig


def test_every_setting_about_loading_reaches_the_loader(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(build, "load_model", lambda spec, **named: given.update(named, spec=spec))
    config = EngineConfig(numerics="bf16", threads=3, device="cpu", max_model_len=512)
    build.load("a/b", config, data_dir=tmp_path)
    assert given.pop("on_shape").keywords == {"config": config}
    assert given == {
        "spec": "a/b",
        "data_dir": tmp_path,
        "numerics": "bf16",
        "progress": None,
        "threads": 3,
        "device": "cpu",
        "max_len": 512,
        "quantization": None,
    }
