"""Fixtures that several packages need."""

from pathlib import Path

import pytest

from engine.weights.fetch import fetch_model
from engine.weights.gguf import GGUFCheckpoint


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--seeds N`: how many times the tests of cut lines are repeated, each time otherwise."""
    parser.addoption("--seeds", type=int, default=20, help="repetitions of tests of cut lines")


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
