"""A bar is shown to whoever watches a long run, and to nobody else."""

import io

import pytest
from rich.console import Console

from engine.progress import ProgressBar


def shown(wanted: bool | None) -> str:
    screen = io.StringIO()
    with ProgressBar(4, wanted, Console(file=screen, force_terminal=True)) as bar:
        for _ in range(4):
            bar.advance(1, 50)
    return screen.getvalue()


def test_a_bar_counts_requests_and_tokens() -> None:
    assert "4/4" in shown(True)
    assert "tokens/s" in shown(True)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_short_run_needs_none(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    assert shown(None) == shown(False) == ""


def test_a_long_run_gets_one_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.progress._PATIENCE_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert "4/4" in shown(None)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    assert shown(None) == ""
