"""Machine code that was kept is only ever a saving: whatever became of its files, all goes on."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.cpu.native.compiled import kept


def doubled(number: int) -> int:
    return 2 * number


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*.nb?") if file.is_file())


@pytest.mark.parametrize("kind", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:40], lambda whole: b"", lambda whole: b"?"]
)
def test_broken_files_are_compiled_again_and_replaced(
    folder: Path, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    assert kept(doubled)(4) == 8
    assert len(_files(folder)) == 2
    for file in folder.rglob(kind):
        file.write_bytes(damage(file.read_bytes()))
    assert kept(doubled)(4) == 8
    again = kept(doubled)
    assert again(4) == 8
    assert again.stats.cache_hits, "what was broken has been mended"


def test_a_folder_that_goes_away_stops_nothing(folder: Path) -> None:
    function = kept(doubled)
    for place in folder.iterdir():
        shutil.rmtree(place)
        place.write_text("no folder any more")
    assert function(4) == 8
    assert kept(doubled)(4) == 8
