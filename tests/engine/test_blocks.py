"""The block pool never loses, doubles or leaks a block, whatever is done to it."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """Random holders take, share, publish and release blocks; a model keeps the true counts."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(24, 4)
        self.holders: list[list[int]] = []
        self.published: dict[bytes, int] = {}
        self.keys = 0

    @rule(count=st.integers(1, 10))
    def allocate(self, count: int) -> None:
        before = self.pool.available
        blocks = self.pool.allocate(count)
        if count > before:
            assert blocks is None
            assert self.pool.available == before
        else:
            assert blocks is not None
            assert len(set(blocks)) == count
            held = {b for holder in self.holders for b in holder}
            assert not held & set(blocks), "a held block was handed out"
            self.holders.append(blocks)
            self.published = {k: b for k, b in self.published.items() if b not in blocks}

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(index))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.holders))))
        if block in self.published.values():
            return
        key = self.keys.to_bytes(2, "big")
        self.keys += 1
        self.pool.publish(block, key)
        self.published[key] = block

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def find_and_share(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.published)))
        block = self.pool.find(key)
        assert block == self.published[key]
        self.pool.share([block])
        self.holders.append([block])

    @invariant()
    def books_add_up(self) -> None:
        self.pool.check()
        counts = Counter(b for holder in self.holders for b in holder)
        assert self.pool.held == len(counts)
        assert all(self.pool.references(b) == n for b, n in counts.items())
        assert all(self.pool.find(k) == b for k, b in self.published.items())

    def teardown(self) -> None:
        for holder in self.holders:
            self.pool.release(holder)
        assert self.pool.available == self.pool.size


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_a_chain_loses_its_tail_before_its_root() -> None:
    pool = BlockPool(3, 4)
    chain = pool.allocate(3)
    assert chain is not None
    for block, key in zip(chain, (b"a", b"b", b"c"), strict=True):
        pool.publish(block, key)
    pool.release(chain)
    pool.allocate(1)
    assert [pool.find(k) is not None for k in (b"a", b"b", b"c")] == [True, True, False]


def test_the_first_block_of_a_key_wins() -> None:
    pool = BlockPool(2, 4)
    first, second = pool.allocate(2) or []
    pool.publish(first, b"k")
    pool.publish(second, b"k")
    assert pool.find(b"k") == first
    pool.release([second])
    assert pool.free == 1, "a block that cannot be found is free, not cached"


def test_releasing_twice_is_our_own_bug() -> None:
    pool = BlockPool(1, 4)
    blocks = pool.allocate(1) or []
    pool.release(blocks)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(blocks)
