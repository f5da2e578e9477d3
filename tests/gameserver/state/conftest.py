"""The small inn with a door, a lantern, and a quick pace."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gameserver.game import GameServer
from tests.gameserver.stage import serving
from tests.gameserver.state.walker import THINGS
from tests.gameserver.stores.conftest import redis_server, store

__all__ = ["redis_server", "store"]

QUICK = {"pace_ms": 5, "far_ms": 20}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GameServer]:
    """A server whose scene has things in it."""
    async with serving(tmp_path, ["The stew is hot."], pack=THINGS, state=QUICK) as running:
        yield running
