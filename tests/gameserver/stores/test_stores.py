"""What every store promises, and each of them keeps: memory, SQLite and Redis alike."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gameserver.stores.memory import MemoryStore
from gameserver.stores.store import (
    Append,
    Changed,
    Drop,
    Erase,
    Holding,
    Keep,
    Put,
    Store,
    Trim,
    Unit,
    Write,
)

_numbers = iter(range(1, 1_000_000))


def unit(writes: list[tuple[str, Write]], **epochs: int) -> Unit:
    return Unit(next(_numbers), dict(epochs), writes)


async def take(store: Store, bucket: str, *, lease: bool = True) -> Holding:
    holding = await store.claim(bucket, lease=lease)
    assert isinstance(holding, Holding)
    return holding


async def test_what_is_written_is_there_for_the_next_owner(store: Store) -> None:
    first = await take(store, "inn")
    assert (dict(first.values), list(first.log)) == ({}, [])
    writes: list[tuple[str, Write]] = [
        ("inn", Put("a", b"\x00\xff")),
        ("inn", Put("b", b"")),
        ("inn", Put("a", b"new")),
        ("inn", Append(1, b"one")),
        ("inn", Append(2, b"\xfe")),
    ]
    assert await store.commit([unit(writes, inn=first.epoch)]) == frozenset()
    second = await take(store, "inn")
    assert dict(second.values) == {"a": b"new", "b": b""}
    assert [(s, bytes(value)) for s, value in second.log] == [(1, b"one"), (2, b"\xfe")]
    assert second.epoch > first.epoch
    assert await store.peek("inn", "a") == b"new"
    assert await store.peek("inn", "c") is None
    assert await store.peek("mill", "a") is None
    assert sorted(await store.keys("inn")) == ["a", "b"]
    assert list(await store.keys("mill")) == []


async def test_a_bucket_needs_no_claim_if_nobody_else_can_know_its_name(store: Store) -> None:
    await store.commit([unit([("s", Put("k", b"v"))], s=7)])
    holding = await take(store, "s", lease=False)
    assert dict(holding.values) == {"k": b"v"}
    assert holding.epoch > 7


async def test_a_claim_may_ask_that_a_value_is_still_as_it_was(store: Store) -> None:
    """Of two who have seen the same token, and one has changed it, the other comes too late."""
    first = await take(store, "s", lease=False)
    await store.commit([unit([("s", Put("token", b"old"))], s=first.epoch)])
    held = await store.claim("s", lease=False, expected=("token", b"old"))
    assert isinstance(held, Holding)
    await store.commit([unit([("s", Put("token", b"new"))], s=held.epoch)])
    for name, value in (("token", b"old"), ("nothing", b"old")):
        with pytest.raises(Changed):
            await store.claim("s", lease=False, expected=(name, value))
    assert await store.commit([unit([("s", Put("k", b"v"))], s=held.epoch)]) == frozenset()


async def test_an_earlier_owner_writes_nothing(store: Store) -> None:
    old = await take(store, "inn", lease=False)
    new = await take(store, "inn", lease=False)
    late = unit([("inn", Put("k", b"old")), ("inn", Append(1, b"old"))], inn=old.epoch)
    assert await store.commit([late]) == {"inn"}
    mine = unit([("inn", Put("k", b"new"))], inn=new.epoch)
    assert await store.commit([mine]) == frozenset()
    holding = await take(store, "inn", lease=False)
    assert (dict(holding.values), list(holding.log)) == ({"k": b"new"}, [])


async def test_what_is_loose_in_a_unit_is_lost_alone_unless_the_rest_is_lost(store: Store) -> None:
    inn = await take(store, "inn", lease=False)
    old = await take(store, "s", lease=False)
    await take(store, "s", lease=False)
    writes: list[tuple[str, Write]] = [("s", Put("k", b"v")), ("inn", Put("k", b"v"))]
    epochs = {"inn": inn.epoch, "s": old.epoch}
    assert await store.commit([Unit(next(_numbers), epochs, writes, loose={"s"})]) == {"s"}
    assert await store.peek("inn", "k") == b"v"
    assert await store.peek("s", "k") is None
    # What follows it in the same commit is lost like any other.
    more = [
        Unit(next(_numbers), epochs, [("s", Put("l", b"v")), ("inn", Put("l", b"v"))], loose={"s"}),
        Unit(next(_numbers), {"s": old.epoch}, [("s", Put("m", b"v"))]),
    ]
    assert await store.commit(more) == {"s"}
    assert await store.peek("inn", "l") == b"v"
    # Where the rest of a unit is lost, what is loose in it has lost what it built on.
    mine = await take(store, "t", lease=False)
    await take(store, "inn", lease=False)
    both: list[tuple[str, Write]] = [("t", Put("k", b"v")), ("inn", Put("m", b"v"))]
    unit = Unit(next(_numbers), {"inn": inn.epoch, "t": mine.epoch}, both, loose={"t"})
    assert await store.commit([unit]) == {"inn", "t"}
    assert await store.peek("t", "k") is None


async def test_a_unit_comes_to_be_whole_or_not_at_all_and_takes_along_what_built_on_it(
    store: Store,
) -> None:
    old = await take(store, "inn", lease=False)
    ann, bob = await take(store, "ann", lease=False), await take(store, "bob", lease=False)
    await take(store, "inn", lease=False)
    group = [
        unit([("bob", Put("k", b"1"))], bob=bob.epoch),
        unit([("inn", Put("k", b"1")), ("ann", Put("k", b"1"))], inn=old.epoch, ann=ann.epoch),
        unit([("ann", Put("k", b"2"))], ann=ann.epoch),
        unit([("bob", Put("k", b"2"))], bob=bob.epoch),
    ]
    assert await store.commit(group) == {"inn", "ann"}
    assert await store.peek("ann", "k") is None
    assert await store.peek("inn", "k") is None
    assert await store.peek("bob", "k") == b"2"


async def test_the_same_units_again_change_nothing(store: Store) -> None:
    inn = await take(store, "inn")
    group = [
        unit([("inn", Append(1, b"one")), ("inn", Put("k", b"1"))], inn=inn.epoch),
        unit([("inn", Append(2, b"two")), ("inn", Drop("k"))], inn=inn.epoch),
    ]
    for _ in range(3):
        assert await store.commit(group) == frozenset()
    holding = await take(store, "inn")
    assert [s for s, _ in holding.log] == [1, 2]
    assert dict(holding.values) == {}


async def test_a_number_that_was_used_is_never_used_for_another_event(store: Store) -> None:
    inn = await take(store, "inn")
    await store.commit([unit([("inn", Append(5, b"five"))], inn=inn.epoch)])
    await store.commit([unit([("inn", Append(5, b"other"))], inn=inn.epoch)])
    await store.commit([unit([("inn", Append(3, b"other"))], inn=inn.epoch)])
    assert [(s, bytes(v)) for s, v in (await take(store, "inn")).log] == [(5, b"five")]


async def test_logs_are_trimmed_and_buckets_are_found_by_their_beginnings(store: Store) -> None:
    for name in ("scene.inn", "scene.inn.b", "session.s", "scene-mill"):
        held = await take(store, name)
        writes: list[tuple[str, Write]] = [(name, Append(s, b"e")) for s in range(1, 6)]
        writes += [(name, Put("k", b"v")), (name, Trim(3)), (name, Drop("nothing"))]
        await store.commit([unit(writes, **{name: held.epoch})])
    assert [s for s, _ in (await take(store, "scene.inn")).log] == [4, 5]
    assert sorted(await store.buckets("scene.")) == ["scene.inn", "scene.inn.b"]
    assert list(await store.buckets("mill")) == []


async def test_an_erased_bucket_is_empty_and_its_epochs_go_on(store: Store) -> None:
    inn = await take(store, "inn")
    await store.commit([unit([("inn", Put("k", b"v")), ("inn", Append(1, b"e"))], inn=inn.epoch)])
    await store.commit([unit([("inn", Erase())], inn=inn.epoch)])
    holding = await take(store, "inn")
    assert (dict(holding.values), list(holding.log)) == ({}, [])
    assert holding.epoch > inn.epoch


async def test_what_is_to_be_kept_for_a_time_is_gone_after_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await take(store, "s", lease=False)
    await store.commit([unit([("s", Keep(0.2)), ("s", Put("k", b"v"))], s=held.epoch)])
    later = Unit(next(_numbers), {"s": held.epoch}, [("s", Append(1, b"e"))], kept={"s": 0.2})
    await store.commit([later])
    assert await store.peek("s", "k") == b"v"
    async with asyncio.timeout(10):
        while await store.peek("s", "k") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    holding = await take(store, "s", lease=False)
    assert (dict(holding.values), list(holding.log)) == ({}, [])


KEYS = st.sampled_from(["a", "ab", "b", "@x/1"])
WRITES = st.one_of(
    st.builds(Put, KEYS, st.binary(max_size=8)),
    st.builds(Drop, KEYS),
    st.builds(Append, st.integers(1, 20), st.binary(max_size=8)),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "write"]),
        st.lists(st.tuples(st.sampled_from(["p", "q"]), WRITES), max_size=4),
        st.integers(0, 1),  # how many claims ago the writer became the owner
    ),
    max_size=12,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, example=st.integers(0, 10**9))
def test_all_stores_do_the_same_as_memory(
    shared_loop: Any, other: Store, steps: list[Any], example: int
) -> None:
    """A model test: random claims, writes, and writes of former owners."""

    async def play(store: Store, prefix: str) -> list[object]:
        seen: list[object] = []
        epochs: dict[str, list[int]] = {"p": [], "q": []}
        for what, writes, age in steps:
            if what == "claim" or not all(epochs.values()):
                for bucket, known in epochs.items():
                    held = await take(store, prefix + bucket, lease=False)
                    known.append(held.epoch)
                    log = [(s, bytes(value)) for s, value in held.log]
                    seen.append((bucket, sorted(held.values.items()), log))
            names = {prefix + bucket: bucket for bucket, _ in writes}
            mine = {
                name: epochs[bucket][max(len(epochs[bucket]) - 1 - age, 0)]
                for name, bucket in names.items()
            }
            if mine:
                loose = {name for name in mine if (age + len(name) + len(writes)) % 3 == 0}
                stamped = [(prefix + b, w) for b, w in writes]
                lost = await store.commit([Unit(next(_numbers), mine, stamped, loose)])
                seen.append(sorted(names[name] for name in lost))
        return seen

    prefix = f"{example}-{next(_numbers)}-"
    expected = shared_loop.run_until_complete(play(MemoryStore(), prefix))
    assert shared_loop.run_until_complete(play(other, prefix)) == expected


@pytest.fixture
def shared_loop() -> Any:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(params=["sqlite", "redis"])
def other(request: pytest.FixtureRequest, shared_loop: Any, tmp_path: Any) -> Any:
    """A store that is compared with memory, in a loop of its own."""
    from gameserver.stores.sqlite import SqliteStore
    from tests.gameserver.stores.conftest import redis_store

    if request.param == "sqlite":
        made: Store = SqliteStore(tmp_path)
    else:
        made = redis_store(request.getfixturevalue("redis_server"), tmp_path.name)
    shared_loop.run_until_complete(made.open())
    yield made
    shared_loop.run_until_complete(made.close())
