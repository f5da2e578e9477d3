"""The usual stage."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gameserver.game import GameServer
from tests.gameserver.stage import serving
from tests.gameserver.stores.redis_server import PROGRAM, RedisServer

REPLIES = ["The bridge is gone. Nobody leaves tonight.", "The stew is hot.", "Mind the cat."]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GameServer]:
    """A game server with generous limits whose NPCs say `REPLIES` in turn."""
    async with serving(tmp_path, REPLIES) as running:
        yield running


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis for the tests of one file, which leave it running."""
    if PROGRAM is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()
