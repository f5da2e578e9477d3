"""A Redis that fails over: the store follows its sentinels to the new primary, and epochs rise."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gameserver.stores.redis import RedisStore
from gameserver.stores.redis_client import connect, place_of, sentinels
from gameserver.stores.store import Append, Holding, StoreDown, Unit
from tests.gameserver.stores.redis_server import PROGRAM, RedisServer, Sentinel

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer, Sentinel]]:
    """A primary, its replica, and a sentinel that watches them."""
    if PROGRAM is None:
        pytest.skip("redis-server is not installed")
    for name in ("a", "b", "s"):
        (tmp_path / name).mkdir()
    primary = RedisServer(tmp_path / "a", "--repl-diskless-sync-delay", "0").start()
    replica = RedisServer(tmp_path / "b", "--replicaof", "127.0.0.1", str(primary.port)).start()
    deadline = time.monotonic() + 20
    while b"master_link_status:up" not in replica.command("INFO", "replication"):
        assert time.monotonic() < deadline, "the replica does not follow"
        time.sleep(0.02)
    sentinel = Sentinel(tmp_path / "s", primary).start()
    yield primary, replica, sentinel
    for server in (sentinel, primary, replica):
        server.kill()


async def test_the_store_follows_to_the_new_primary(
    pair: tuple[RedisServer, RedisServer, Sentinel],
) -> None:
    primary, replica, sentinel = pair
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/world/0"
    store = RedisStore(url, "one", "1", "", "t", 5.0)
    await store.open()
    first = await store.claim("inn", lease=True)
    assert isinstance(first, Holding)
    unit = Unit(1, {"inn": first.epoch}, [("inn", Append(1, b"e"))])
    assert await store.commit([unit]) == frozenset()
    async with asyncio.timeout(20):
        while b":1" not in replica.command("XLEN", "t:l:inn"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    primary.kill()
    began = time.monotonic()
    with pytest.raises(StoreDown):
        await store.commit([Unit(2, {"inn": first.epoch}, [("inn", Append(2, b"e"))])])
    assert time.monotonic() - began < 3.0, "no request hangs"
    async with asyncio.timeout(30):
        while True:
            try:
                unit = Unit(2, {"inn": first.epoch}, [("inn", Append(2, b"e"))])
                assert await store.commit([unit]) == frozenset()
                break
            except StoreDown:
                await asyncio.sleep(0.05)
    again = await store.claim("inn", lease=True)
    assert isinstance(again, Holding)
    assert again.epoch > first.epoch
    assert [s for s, _ in again.log] == [1, 2]
    await store.close()


def test_addresses_of_sentinels() -> None:
    url = "redis+sentinel://user:secret@one,two:26380,[::1]:5/world/3?sentinel_password=x"
    assert sentinels(url) == [("one", 26379), ("two", 26380), ("::1", 5)]
    assert place_of(url) == "one,two:26380,[::1]:5/world/3"
    assert place_of("redis://u:secret@host/0") == "host:6379"
    for wrong in (
        "redis+sentinel://:secret@one",
        "redis+sentinel://:secret@one/world/x",
        "redis+sentinel://:secret@/world",
        "redis+sentinel://:secret@one/world?quorum=2",
        "http://:secret@one",
    ):
        with pytest.raises(ValueError, match=r"\w") as caught:
            connect(wrong)
        assert "secret" not in str(caught.value)
