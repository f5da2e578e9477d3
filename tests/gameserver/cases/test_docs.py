"""The pages that say which test stands for what name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("page", ["session-cases.md", "security.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    files = list((ROOT / "tests").rglob("test_*.py"))
    defined = {
        name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text("utf-8"))
    }
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named - defined == set()
    paths = {str(file.relative_to(ROOT)) for file in files}
    for path in re.findall(r"`([\w/]*test_\w+\.py)`", text):
        assert any(known.endswith(f"/{path.split('tests/')[-1]}") for known in paths), path


def test_every_case_has_a_test() -> None:
    rows = re.findall(
        r"^\| (\d+) \|.*$", (ROOT / "docs" / "session-cases.md").read_text("utf-8"), re.MULTILINE
    )
    assert [int(row) for row in rows] == list(range(1, 26))
