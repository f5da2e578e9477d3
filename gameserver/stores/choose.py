"""Which store the settings ask for."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from engine.libraries import how_to_install
from gameserver.nodes.card import own_url
from gameserver.stores.memory import MemoryStore
from gameserver.stores.sqlite import SqliteStore
from gameserver.stores.store import Store, StoreError

if TYPE_CHECKING:
    from gameserver.settings import Settings
    from gameserver.stores.redis import RedisStore


def choose_store(settings: "Settings") -> Store:
    """Redis if there is an address of one, else a file if there is a data folder, else memory.

    Raises:
        StoreError: the address cannot be read, or the library for Redis is not installed.
    """
    if settings.redis is not None:
        return redis_store(settings)
    if settings.data is not None:
        return SqliteStore(Path(settings.data))
    return MemoryStore()


def redis_store(settings: "Settings") -> "RedisStore":
    """This node's end of the Redis at `settings.redis`; errors as above."""
    try:
        from gameserver.stores.redis import RedisStore
    except ImportError as error:
        raise StoreError(
            f"--redis needs a library: {how_to_install('troupe-npc[redis]')}"
        ) from error
    assert settings.redis is not None
    store, url = settings.store, own_url(settings)
    life = secrets.token_hex(8)
    try:
        return RedisStore(settings.redis, settings.node, life, url, store.prefix, store.lease_s)
    except ValueError as error:
        raise StoreError(f"--redis: {error}") from error
