"""Leases and epochs on a real Redis, and what becomes of us when it is in trouble."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gameserver.doctor import examine
from gameserver.stores.store import Append, Elsewhere, Holding, Put, StoreDown, StoreError, Unit
from tests.gameserver.stage import settings_with
from tests.gameserver.stores.conftest import redis_store
from tests.gameserver.stores.redis_server import PROGRAM, RedisServer
from tests.gameserver.test_doctor import WELL


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis for one test, which may do what it likes with it."""
    if PROGRAM is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(tmp_path).start()
    yield server
    server.kill()


async def test_a_lease_keeps_others_out_until_it_ends(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    one = redis_store(redis_server, tmp_path.name, "one", lease_s=0.3)
    two = redis_store(redis_server, tmp_path.name, "two", lease_s=0.3)
    held = await one.claim("inn", lease=True)
    assert isinstance(held, Holding)
    assert await two.claim("inn", lease=True) == Elsewhere("one", "ws://one")
    for _ in range(4):
        await asyncio.sleep(0.1)
        assert not (await one.renew({"inn": held.epoch})).lost
    assert await two.claim("inn", lease=True) == Elsewhere("one", "ws://one")
    await asyncio.sleep(0.35)
    taken = await two.claim("inn", lease=True)
    assert isinstance(taken, Holding)
    assert taken.epoch > held.epoch
    assert (await one.renew({"inn": held.epoch})).lost == {"inn"}
    assert await one.commit([Unit(1, {"inn": held.epoch}, [("inn", Put("k", b"v"))])]) == {"inn"}
    await one.close()
    await two.close()


async def test_a_lease_that_is_given_back_is_free_at_once(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    one = redis_store(redis_server, tmp_path.name, "one")
    two = redis_store(redis_server, tmp_path.name, "two")
    held = await one.claim("inn", lease=True)
    assert isinstance(held, Holding)
    await one.release({"inn": held.epoch})
    assert isinstance(await two.claim("inn", lease=True), Holding)
    await one.release({"inn": held.epoch})  # late, and not ours any more
    assert isinstance(await one.claim("inn", lease=True), Elsewhere)
    await one.close()
    await two.close()


async def test_of_many_who_claim_at_once_one_wins(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    nodes = [redis_store(redis_server, tmp_path.name, f"n{i}") for i in range(10)]
    for scene in range(20):
        claims = await asyncio.gather(*(node.claim(f"s{scene}", lease=True) for node in nodes))
        winners = [claim for claim in claims if isinstance(claim, Holding)]
        assert len(winners) == 1
        assert len({claim.node for claim in claims if isinstance(claim, Elsewhere)}) == 1
    for node in nodes:
        await node.close()


async def test_a_scene_that_nobody_has_is_kept_for_a_node_that_lives(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Whoever asks is told the same; and nothing is kept longer than the node is heard of."""
    nodes = [redis_store(redis_server, tmp_path.name, f"n{i}", lease_s=0.4) for i in range(3)]
    one, two, three = nodes
    assert await one.reserve("inn", "n1", "ws://n1") is None, "nobody has heard of it"
    await two.renew({}, b"two")
    cards = (await three.renew({}, b"three")).cards
    assert cards == {"n1": b"two", "n2": b"three"}
    answers = await asyncio.gather(
        *(node.reserve("inn", name, f"ws://{name}") for node in nodes for name in ("n1", "n2"))
    )
    kept = answers[0]
    assert kept is not None
    assert answers == [kept] * 6, "the first who asked has decided"
    for node in nodes:
        mine = kept.node == f"n{nodes.index(node)}"
        assert isinstance(await node.claim("inn", lease=True), Holding if mine else Elsewhere)
    # One that is not heard of any more keeps nothing: neither claimed, nor kept for it.
    assert await one.reserve("mill", "n1", "ws://n1") == Elsewhere("n1", "ws://n1")
    await asyncio.sleep(0.45)
    for bucket in ("inn", "mill"):
        assert await one.holder(bucket) is None
    assert (await one.renew({}, b"one")).cards == {"n0": b"one"}
    for node in nodes:
        await node.close()


async def test_epochs_rise_even_if_redis_forgets_the_counter(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    store = redis_store(redis_server, tmp_path.name)
    first = await store.claim("inn", lease=True)
    redis_server.command("DEL", f"{tmp_path.name}:e:inn")
    await asyncio.sleep(0.002)
    second = await store.claim("inn", lease=True)
    assert isinstance(first, Holding)
    assert isinstance(second, Holding)
    assert second.epoch > first.epoch
    await store.close()


async def test_commits_that_arrive_late_undo_nothing(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Commits that were given up may still lie in sockets, and arrive after later ones, in any
    order, and more than once."""
    dice = random.Random(0)
    for case in range(10):
        store = redis_store(redis_server, f"{tmp_path.name}-{case}")
        units = [
            Unit(n, {"s": 1}, [("s", Put(f"k{n % 3}", b"%d" % n)), ("s", Append(n, b"%d" % n))])
            for n in range(1, 9)
        ]
        for unit in units:
            for sent in (unit, *dice.choices(units[: unit.number], k=3)):
                assert await store.commit([sent]) == frozenset()
            newest = {f"k{n % 3}": b"%d" % n for n in range(1, unit.number + 1)}
            assert {key: await store.peek("s", key) for key in newest} == newest
        await store.close()


async def test_no_request_hangs_and_all_go_on_when_redis_is_back(own_redis: RedisServer) -> None:
    store = redis_store(own_redis, "t")
    await store.open()
    held = await store.claim("inn", lease=True)
    assert isinstance(held, Holding)

    async def fails() -> None:
        began = time.monotonic()
        with pytest.raises(StoreDown):
            await store.commit([Unit(1, {"inn": held.epoch}, [("inn", Append(1, b"e"))])])
        assert time.monotonic() - began < 1.0

    own_redis.signal(signal.SIGSTOP)
    await fails()
    own_redis.signal(signal.SIGCONT)
    own_redis.kill()
    await fails()
    own_redis.start()  # its scripts are gone, its data are not
    assert await store.commit([Unit(1, {"inn": held.epoch}, [("inn", Append(1, b"e"))])]) == set()
    own_redis.command("REPLICAOF", "127.0.0.1", "1")
    await fails()
    own_redis.command("REPLICAOF", "NO", "ONE")
    own_redis.command("CONFIG", "SET", "maxmemory", "1")
    await fails()
    own_redis.command("CONFIG", "SET", "maxmemory", "0")
    own_redis.command("CLIENT", "KILL", "TYPE", "normal")
    for number in (2, 3):  # the first one may still meet the dead line
        unit = Unit(number, {"inn": held.epoch}, [("inn", Append(number, b"e"))])
        try:
            await store.commit([unit])
        except StoreDown:
            assert await store.commit([unit]) == frozenset()
    again = await store.claim("inn", lease=True)
    assert isinstance(again, Holding)
    assert [s for s, _ in again.log] == [1, 2, 3]
    await store.close()


async def test_doctor_asks_redis_whether_it_keeps_what_it_is_given(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    async def look() -> tuple[str, str]:
        settings = settings_with(console_port=0, redis=own_redis.url)
        found = await asyncio.to_thread(examine, settings, tmp_path, WELL)
        return next((f.state, f.found) for f in found if f.name == "worlds")

    assert (await look())[0] == "ok"
    own_redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert "allkeys-lru" in (await look())[1]
    own_redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    own_redis.command("CONFIG", "SET", "appendonly", "no")
    state, found = await look()
    assert (state, "without AOF" in found) == ("missing", True)
    own_redis.kill()
    assert (await look())[0] == "broken"


async def test_a_redis_that_cannot_be_used_is_named_without_its_password(
    own_redis: RedisServer,
) -> None:
    from gameserver.stores.redis import RedisStore

    def at(url: str) -> RedisStore:
        return RedisStore(url, "n", "1", "", "t", 5.0)

    with pytest.raises(StoreError, match="start it, or correct --redis") as caught:
        await at("redis://:secret@127.0.0.1:1/0").open()
    assert "secret" not in str(caught.value)
    store = at(own_redis.url)
    await store.open()
    own_redis.command("SET", "t:format", "99")
    with pytest.raises(StoreError, match="newer Troupe"):
        await store.open()
    await store.close()
    own_redis.command("CONFIG", "SET", "requirepass", "right")
    wrong = at(f"redis://:wrong@127.0.0.1:{own_redis.port}/0")
    with pytest.raises(StoreError, match="user and the password") as caught:
        await wrong.open()
    assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
    await wrong.close()
