"""A broker, if there is one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gameserver.mqtt.mosquitto import PROGRAM, Mosquitto


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """A Mosquitto without persistence."""
    if PROGRAM is None:
        pytest.skip("mosquitto is not installed")
    server = Mosquitto(tmp_path).start()
    yield server
    server.end()
