"""A store in Redis, which several nodes share.

All changes are Lua scripts, which Redis runs one at a time: a claim reads the bucket in the same
moment in which it becomes ours, and a commit compares epochs before it writes. Scripts touch keys
of several buckets: one Redis, or one with replicas behind one address; no Redis Cluster.

What Redis promises is what its configuration says. With `appendonly yes` a restart of it loses at
most a second; without, all since its last snapshot.
"""

import importlib.resources
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from redis.exceptions import AuthenticationError, ReadOnlyError, RedisError, ResponseError

from gameserver.stores.redis_client import connect, place_of
from gameserver.stores.store import (
    Append,
    Changed,
    Drop,
    Elsewhere,
    Erase,
    Holding,
    Keep,
    Put,
    Renewal,
    StoreDown,
    StoreError,
    Trim,
    Unit,
    Write,
)

#: Layout of our keys.
_FORMAT = 1
#: The oldest Redis whose scripts can say that they must not run half.
_OLDEST = 7
#: Counters of erased buckets are kept so long: an owner who comes back late must still be refused.
_MEMORY_S = 24 * 3600


class RedisStore:
    """See `gameserver.stores.store.SharedStore`.

    Keys, each behind `prefix:`: `e:BUCKET` epoch, `v:BUCKET` values, `l:BUCKET` log, `o:BUCKET`
    lease, `n:NODE` card of a node that lives, `nodes` their names, `t:NAME` what somebody may take,
    `b:NODE` the last commit of a process.
    """

    survives = True
    shared = True

    def __init__(
        self, url: str, node: str, incarnation: str, public_url: str, prefix: str, lease_s: float
    ) -> None:
        """
        Args:
            url: see `redis_client.connect`.
            node: our name among the nodes.
            incarnation: different for every process that ever bears the name.
            public_url: where players connect to us.
            prefix: of all keys.
            lease_s: how long a claim holds without being renewed.
        """
        self._at = place_of(url)
        self._node = node
        self._incarnation = incarnation
        self._public_url = public_url
        self._prefix = prefix
        self._lease_ms = int(lease_s * 1000)
        self._redis, self._others = connect(url)
        self._claim, self._commit, self._renew, self._release = (
            self._redis.register_script(_script(name))
            for name in ("claim", "commit", "renew", "release")
        )
        self._reserve = self._redis.register_script(_script("reserve"))

    async def open(self) -> None:
        """See `Store`. Raises `StoreError` if Redis cannot be reached, is too old, or holds the
        keys of a newer version."""
        await self.examine()
        try:
            await self._ask(lambda: self._redis.set(f"{self._prefix}:format", _FORMAT, nx=True))
        except StoreDown as error:
            raise StoreError(f"{error}: nothing can be written there") from error

    async def examine(self) -> Mapping[str, str]:
        """What Redis it is, and how it is configured: version, role, aof, eviction. Changes
        nothing; raises `StoreError` as `open` does."""
        try:
            info: dict[str, Any] = await self._redis.info()
            known = int(await self._redis.get(f"{self._prefix}:format") or _FORMAT)
        except AuthenticationError as error:
            raise StoreError(
                f"Redis at {self._at} refuses us ({error}): correct the user and the password in "
                "the address"
            ) from error
        except (RedisError, OSError) as error:
            raise StoreError(
                f"Redis at {self._at} cannot be used ({error}): start it, or correct --redis"
            ) from error
        version = str(info["redis_version"])
        if int(version.split(".")[0]) < _OLDEST:
            raise StoreError(f"Redis at {self._at} is {version}: take version {_OLDEST} or newer")
        if known > _FORMAT:
            raise StoreError(
                f"Redis at {self._at} holds worlds of a newer Troupe (format {known}, this one "
                f"knows {_FORMAT}): start that version, or choose another store.prefix"
            )
        return {
            "version": version,
            "role": str(info["role"]),
            "aof": str(info["aof_enabled"]),
            "eviction": str(info["maxmemory_policy"]),
        }

    async def close(self) -> None:
        """See `Store`."""
        await self._redis.aclose()
        for client in self._others:
            await client.aclose()

    async def claim(
        self, bucket: str, *, lease: bool, expected: tuple[str, bytes] | None = None
    ) -> Holding | Elsewhere:
        """See `Store`."""
        lease_ms = self._lease_ms if lease else 0
        reply = await self._ask(
            lambda: self._claim(
                keys=[self._key(kind, bucket) for kind in "eovl"],
                args=[self._node, self._public_url, lease_ms, *(expected or ())],
            )
        )
        if reply[0] == b"changed":
            raise Changed
        if reply[0] == b"elsewhere":
            return Elsewhere(reply[1].decode(), reply[2].decode())
        _, epoch, values, log = reply
        pairs = zip(values[::2], values[1::2], strict=True)
        return Holding(
            int(epoch),
            {key.decode(): value for key, value in pairs},
            [(int(ident.split(b"-")[0]), fields[1]) for ident, fields in log],
        )

    async def peek(self, bucket: str, key: str) -> bytes | None:
        """See `Store`."""
        value: bytes | None = await self._ask(lambda: self._redis.hget(self._key("v", bucket), key))
        return value

    async def keys(self, bucket: str) -> Sequence[str]:
        """See `Store`."""
        found = await self._ask(lambda: self._redis.hkeys(self._key("v", bucket)))
        return [key.decode() for key in found]

    async def commit(self, units: Sequence[Unit]) -> frozenset[str]:
        """See `Store`."""
        plain = []
        values: list[bytes] = []  # by themselves: the script's msgpack has no bytes
        for unit in units:
            asked = {b: write.seconds for b, write in unit.writes if isinstance(write, Keep)}
            kept = {b: int(seconds * 1000) for b, seconds in (unit.kept | asked).items()}
            writes = [(bucket, *_plain(write, values)) for bucket, write in unit.writes]
            plain.append((unit.epochs, writes, kept, dict.fromkeys(unit.loose, True)))
        # A commit that was given up may still be on its way when the next ones are done.
        number = units[-1].number
        lost = await self._ask(
            lambda: self._commit(
                keys=[f"{self._prefix}:b:{self._node}:{self._incarnation}"],
                args=[self._prefix, number, _MEMORY_S, msgspec.msgpack.encode(plain), *values],
            )
        )
        return frozenset(name.decode() for name in lost)

    async def buckets(self, prefix: str) -> Sequence[str]:
        """See `Store`."""
        found: list[bytes] = await self._ask(lambda: self._scan(prefix))
        return [name.decode().removeprefix(self._key("v", "")) for name in found]

    async def renew(self, held: Mapping[str, int], card: bytes = b"") -> Renewal:
        """See `SharedStore`."""
        lost, cards = await self._ask(
            lambda: self._renew(
                keys=[self._key("n", self._node), f"{self._prefix}:nodes"],
                args=[
                    self._prefix,
                    self._node,
                    self._public_url,
                    self._lease_ms,
                    msgspec.msgpack.encode(list(held.items())),
                    card,
                ],
            )
        )
        known = zip(cards[::2], cards[1::2], strict=True)
        return Renewal(
            frozenset(name.decode() for name in lost), {node.decode(): c for node, c in known}
        )

    async def card(self, node: str) -> bytes | None:
        """See `SharedStore`."""
        card: bytes | None = await self._ask(lambda: self._redis.get(self._key("n", node)))
        return card

    async def reserve(self, bucket: str, node: str, url: str) -> Elsewhere | None:
        """See `SharedStore`."""
        found = await self._ask(
            lambda: self._reserve(
                keys=[self._key("o", bucket), self._key("n", node)], args=[node, url]
            )
        )
        return None if found is None else Elsewhere(*(part.decode() for part in found))

    async def holder(self, bucket: str) -> Elsewhere | None:
        """See `SharedStore`."""
        lease = await self._ask(lambda: self._redis.hmget(self._key("o", bucket), "node", "url"))
        node, url = lease
        if node is None or node.decode() == self._node:
            return None
        return Elsewhere(node.decode(), (url or b"").decode())

    async def release(self, held: Mapping[str, int]) -> None:
        """See `SharedStore`."""
        await self._ask(
            lambda: self._release(
                keys=[self._key("n", self._node)],
                args=[self._prefix, msgspec.msgpack.encode(list(held.items()))],
            )
        )

    async def leave(self, name: str, value: bytes, seconds: float) -> None:
        """See `SharedStore`."""
        ms = max(1, int(seconds * 1000))
        await self._ask(lambda: self._redis.set(self._key("t", name), value, px=ms))

    async def take(self, name: str) -> bytes | None:
        """See `SharedStore`."""
        value: bytes | None = await self._ask(lambda: self._redis.getdel(self._key("t", name)))
        return value

    async def scrub(self) -> None:
        """See `Store`. Its files are the business of whoever runs Redis: `BGREWRITEAOF`."""

    async def _scan(self, prefix: str) -> list[bytes]:
        pattern = self._key("v", _literally(prefix)) + "*"
        return [name async for name in self._redis.scan_iter(match=pattern, count=1000)]

    def _key(self, kind: str, bucket: str) -> str:
        return f"{self._prefix}:{kind}:{bucket}"

    async def _ask(self, request: Callable[[], Awaitable[Any]]) -> Any:
        try:
            reply = await request()
        except ReadOnlyError as error:
            # A replica by now. A new connection may lead to the new primary; this one never will.
            await self._redis.connection_pool.disconnect()
            raise StoreDown(f"Redis at {self._at}: {error}") from error
        except (RedisError, ResponseError, OSError) as error:
            raise StoreDown(f"Redis at {self._at}: {error}") from error
        return reply


def _plain(write: Write, values: list[bytes]) -> tuple[object, ...]:
    """A write as the script reads it; its value goes to `values`, and its place there is told."""
    match write:
        case Put(key, value):
            values.append(value)
            return ("put", key, len(values))
        case Drop(key):
            return ("drop", key)
        case Append(s, value):
            values.append(value)
            return ("append", s, len(values))
        case Trim(s):
            return ("trim", s)
        case Keep():
            return ("keep",)
        case Erase():
            return ("erase",)


def _script(name: str) -> str:
    return (importlib.resources.files("gameserver.stores") / f"{name}.lua").read_text("utf-8")


def _literally(text: str) -> str:
    """A pattern of Redis that matches just this."""
    return "".join(f"\\{char}" if char in "*?[]\\^-" else char for char in text)
