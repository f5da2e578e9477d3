"""The three stores, each as it is."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gameserver.stores.memory import MemoryStore
from gameserver.stores.sqlite import SqliteStore
from gameserver.stores.store import Store
from tests.gameserver.stores.redis_server import PROGRAM, RedisServer


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that is shared by tests that leave it running; each takes a prefix of its own."""
    if PROGRAM is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An open, empty store of each kind."""
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "sqlite":
        made = SqliteStore(tmp_path)
    else:
        made = redis_store(request.getfixturevalue("redis_server"), tmp_path.name)
    await made.open()
    yield made
    await made.close()


def redis_store(
    server: RedisServer, prefix: str, node: str = "one", life: str = "1", lease_s: float = 5.0
) -> "Store":
    """A node's end of a Redis, not open yet."""
    from gameserver.stores.redis import RedisStore

    return RedisStore(server.url, node, life, f"ws://{node}", prefix, lease_s)
