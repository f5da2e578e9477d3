"""The code of docs/api.md runs as it stands, from top to bottom."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.model
def test_the_page_runs(
    default_model_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text("utf-8"), re.S)
    assert len(blocks) == 8
    known: dict[str, Any] = {}
    before = Path.cwd()
    os.chdir(cache_dir.parents[1])  # the page keeps models in `.cache/troupe`, as `make serve` does
    try:
        for block in blocks:
            exec(compile(block, "docs/api.md", "exec"), known)
    finally:
        os.chdir(before)
    said = capsys.readouterr().out
    assert "Eels cost two coppers." in said
    assert known["reply"].text.startswith(("give ", "say "))
