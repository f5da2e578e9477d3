"""The way to a Redis: one at an address, or the primary that sentinels name.

Nothing waits long and nothing is tried again here: who asks does that, in order.
"""

from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

_SENTINEL_PORT = 26379
_REDIS_PORT = 6379
_PATIENCE_S = 0.5


class Closable(Protocol):
    """What is to be closed with a client."""

    async def aclose(self) -> None: ...  # noqa: D102


def connect(url: str) -> tuple["Redis", list[Closable]]:
    """A client, and what else is to be closed with it.

    Args:
        url: redis://[user:password@]host[:port][/db], rediss:// with TLS, unix://, or
            redis+sentinel://[user:password@]host[:port][,host[:port]…]/service[/db]: each
            connection asks the sentinels anew who is the primary. `?sentinel_username=` and
            `?sentinel_password=` are for the sentinels themselves.

    Raises:
        ValueError: it is none of those; the message has no password in it.
    """
    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": _PATIENCE_S,
        "socket_connect_timeout": _PATIENCE_S,
    }
    if not url.startswith("redis+sentinel://"):
        return Redis.from_url(url, **options), []
    parts, query = urlsplit(url), dict(parse_qsl(urlsplit(url).query))
    service, _, database = parts.path.strip("/").partition("/")
    login, _, _ = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    if not service or (database and not database.isdecimal()):
        raise ValueError("write redis+sentinel://host[:port],host[:port]/SERVICE[/DATABASE]")
    known = {"sentinel_username": "username", "sentinel_password": "password"}
    if unknown := sorted(query.keys() - known.keys()):
        raise ValueError(f"there is no {unknown[0]}= in an address of sentinels")
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        sentinels(url),
        sentinel_kwargs=options | {known[key]: value for key, value in query.items()},
        username=unquote(user) or None,
        password=unquote(password) or None,
        db=int(database or 0),
        **options,
    )
    primary: Redis = sentinel.master_for(service)
    return primary, list(sentinel.sentinels)


def sentinels(url: str) -> list[tuple[str, int]]:
    """The hosts and ports of an address with several of them. Raises `ValueError`."""
    found = []
    for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{host}")
        if not parts.hostname:
            raise ValueError("an address of sentinels names at least one host")
        found.append((parts.hostname, parts.port or _SENTINEL_PORT))
    return found


def place_of(url: str) -> str:
    """Where it is, for people, without the password."""
    parts = urlsplit(url)
    if parts.scheme == "redis+sentinel":
        return parts.netloc.rpartition("@")[2] + parts.path
    return f"{parts.hostname or 'localhost'}:{parts.port or _REDIS_PORT}"
