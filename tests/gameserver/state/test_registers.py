"""Copies that got the same items hold the same, in whatever order, how often and on which way."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gameserver.state.clock import EPOCH_MS, HybridClock
from gameserver.state.registers import Item, Registers

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.just(1.0), st.text(max_size=2), st.just([1, 2])
)
ITEMS = st.lists(
    st.builds(
        Item,
        e=st.sampled_from("ab"),
        k=st.sampled_from("xy"),
        v=VALUES,
        h=st.integers(1, 6),  # few, so that stamps are equal now and then
        o=st.sampled_from("mn"),
    ),
    max_size=24,
)


def content(registers: Registers) -> list[str]:
    """All that a copy holds; True is not 1 here, nor 1.0."""
    return sorted(repr(register.item) for register in registers.since(0))


def merged(items: list[Item]) -> Registers:
    """A copy that got these."""
    registers = Registers()
    for item in items:
        registers.merge(item)
    return registers


@given(ITEMS, st.randoms(use_true_random=False))
def test_order_does_not_matter(items: list[Item], dice: random.Random) -> None:
    other = list(items)
    dice.shuffle(other)
    assert content(merged(items)) == content(merged(other))


@given(ITEMS, st.randoms(use_true_random=False))
def test_nor_how_often_something_comes(items: list[Item], dice: random.Random) -> None:
    doubled = [item for item in items for _ in range(dice.randint(1, 3))]
    dice.shuffle(doubled)
    registers = merged(doubled)
    assert content(registers) == content(merged(items))
    rev = registers.rev
    assert not any(registers.merge(item) for item in doubled)
    assert registers.rev == rev


@given(ITEMS, ITEMS, ITEMS)
def test_nor_what_was_put_together_first(
    one: list[Item], two: list[Item], more: list[Item]
) -> None:
    def joined(*copies: Registers) -> Registers:
        return merged([register.item for copy in copies for register in copy.since(0)])

    a, b, c = merged(one), merged(two), merged(more)
    assert content(joined(joined(a, b), c)) == content(joined(a, joined(b, c)))


@given(ITEMS)
def test_the_highest_stamp_and_origin_holds(items: list[Item]) -> None:
    registers = merged(items)
    for register in registers.since(0):
        item = register.item
        assert (item.h, item.o) == max(
            (other.h, other.o) for other in items if (other.e, other.k) == (item.e, item.k)
        )


@given(ITEMS, st.data())
def test_what_has_changed_since_is_what_a_copy_of_then_lacks(items: list[Item], data: Any) -> None:
    registers = Registers()
    cut = data.draw(st.integers(0, len(items)))
    for item in items[:cut]:
        registers.merge(item)
    then, rev = merged([register.item for register in registers.since(0)]), registers.rev
    for item in items[cut:]:
        registers.merge(item)
    revs = [register.rev for register in registers.since(rev)]
    assert revs == sorted(revs)
    for register in registers.since(rev):
        assert then.merge(register.item)
    assert content(then) == content(registers)


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_copies_converge_under_loss_reorder_and_duplication(seed: int, copies: int) -> None:
    """Writers with clocks of their own send what they write over lines that lose, double and
    reorder. In the end each asks each for what it may have missed, as after a resume.
    """
    dice = random.Random(seed)
    now = EPOCH_MS + 1_000_000
    registers = [Registers() for _ in range(copies)]

    def clock(skew: int) -> HybridClock:
        return HybridClock(lambda: now + skew, 1000)

    clocks = [clock(dice.randint(-300, 300)) for _ in range(copies)]
    lines: list[tuple[int, Item]] = []

    def take(copy: int, item: Item) -> None:
        clocks[copy].check(item.h)
        clocks[copy].see(item.h)
        registers[copy].merge(item)

    for _ in range(120):
        now += dice.choice([0, 0, 1, 40, -20])
        copy = dice.randrange(copies)
        value = dice.choice([None, dice.random(), dice.randint(0, 9)])
        stamp = clocks[copy].tick()
        item = Item(dice.choice("abc"), dice.choice("xyz"), value, stamp, f"n{copy}")
        assert registers[copy].merge(item), "one's own write is newer than all one has seen"
        for other in set(range(copies)) - {copy}:
            lines += [(other, item)] * dice.choice([0, 1, 1, 2])
        dice.shuffle(lines)
        for _ in range(dice.randint(0, 3)):
            if lines:
                take(*lines.pop())
    while lines:
        take(*lines.pop())
    for _ in range(2):
        for one in range(copies):
            for other in range(copies):
                for register in list(registers[other].since(0)):
                    take(one, register.item)
    assert len({tuple(content(copy)) for copy in registers}) == 1


def test_what_was_removed_long_ago_does_not_come_back() -> None:
    registers = merged([Item("ann", "pos", [1, 1], 10, "n"), Item("ann", "pos", None, 20, "n")])
    assert registers.collect(before=20, most=9, spare=lambda e: False) == []
    assert registers.collect(before=21, most=9, spare=lambda e: e == "ann") == []
    assert registers.collect(before=21, most=9, spare=lambda e: False) == [("ann", "pos")]
    assert registers.forgotten == 2
    assert registers.merge(Item("ann", "pos", [1, 1], 10, "n")) is None
    assert registers.merge(Item("ann", "pos", [1, 1], 20, "n")) is None
    assert registers.merge(Item("ann", "pos", [2, 2], 21, "n")) is not None


def test_of_many_removals_the_oldest_are_collected() -> None:
    registers = Registers()
    for n in range(100):
        registers.merge(Item(f"p{n}", "pos", None, n + 1, "n"))
    gone = registers.collect(before=0, most=10, spare=lambda e: False)
    assert gone == [(f"p{n}", "pos") for n in range(90)]
    assert registers.horizon == (90, "n")
    assert len(list(registers.since(0))) == 10
    assert len(registers) == 0


def test_a_value_of_the_scene_file_holds_until_it_is_written_and_can_be_replaced() -> None:
    registers = Registers(horizon=(50, "n"))
    assert registers.merge(Item("door", "open", False, 0, ""))
    registers.impose(Item("door", "open", True, 0, ""))
    assert registers.value("door", "open") is True
    assert registers.merge(Item("door", "open", False, 1, "n"))
    assert registers.keys("door") == ["open"]
