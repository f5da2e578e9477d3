"""Fixtures that several packages need."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from engine.weights.fetch import fetch_model
from engine.weights.gguf import GGUFCheckpoint


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--seeds N`: how many times the tests of cut lines are repeated, each time otherwise."""
    parser.addoption("--seeds", type=int, default=20, help="repetitions of tests of cut lines")


@pytest.fixture(autouse=True)
def _how_is_logged_ends_with_a_test() -> Iterator[None]:
    """`troupe serve`, run in this process, sets it up for the whole of it."""
    root = logging.getLogger()
    level = root.level
    yield
    if structlog.is_configured():
        ours = structlog.stdlib.ProcessorFormatter
        root.handlers = [h for h in root.handlers if not isinstance(h.formatter, ours)]
        root.setLevel(level)
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def cache_dir(request: pytest.FixtureRequest) -> Path:
    """Where `make serve` keeps fetched models in a checkout, so that tests and server share one
    copy.
    """
    return request.config.rootpath / ".cache" / "troupe"


@pytest.fixture(scope="session")
def default_model_path(cache_dir: Path) -> Path:
    """The default model's GGUF file, fetched on first use."""
    return fetch_model(cache_dir)


@pytest.fixture(scope="session")
def default_checkpoint(default_model_path: Path) -> GGUFCheckpoint:
    """The default model's file, opened once: reading its vocabulary takes seconds."""
    return GGUFCheckpoint(default_model_path)
