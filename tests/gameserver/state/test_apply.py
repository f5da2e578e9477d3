"""What others have stamped is taken in whole or not at all; new versions of a scene file count."""

from typing import Any

import pytest

from gameserver.commands import StateWrite
from gameserver.protocol import Refusal
from gameserver.state import scene_state
from gameserver.state.clock import MOST, stamp_of
from gameserver.state.registers import Item
from scenes.entities import Entity, Surroundings
from scenes.space import Bounds
from tests.gameserver.state.alone import pack_of, state_of, truth

DOOR = Entity("door", {"open": False, "pos": [1, 1]}, {"open": "player", "pos": "server"})
AROUND = Surroundings(bounds=Bounds((0, 0), (9, 9)), entities={"door": DOOR})
NOW_MS = 1_800_000_000_000
NOW = stamp_of(NOW_MS)


@pytest.fixture(autouse=True)
def the_clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene_state, "now_ms", lambda: NOW_MS)


def test_the_same_items_give_the_same_state_in_any_order_and_number() -> None:
    items = [
        Item("door", "open", True, NOW, "a"),
        Item("door", "open", False, NOW, "b"),
        Item("door", "pos", [2, 2], NOW - 1, "a"),
        Item("door", "pos", None, NOW - 2, "b"),
    ]
    states = [state_of(AROUND) for _ in range(2)]
    states[0].apply(items)
    for item in [*reversed(items), *items]:
        states[1].apply([item])
    assert (
        truth(states[0]) == truth(states[1]) == {("door", "open"): False, ("door", "pos"): [2, 2]}
    )
    assert states[0].apply(items) == []


def test_own_writes_come_after_all_that_was_taken_in() -> None:
    state = state_of(AROUND)
    state.apply([Item("door", "open", True, NOW + (30_000 << 12), "ahead")])
    (item,) = state.put([StateWrite("door", "open", False)])
    assert item.h == NOW + (30_000 << 12) + 1
    assert state.registers.value("door", "open") is False


@pytest.mark.parametrize(
    ("item", "code", "words"),
    [
        (Item("door", "open", True, NOW + (120_000 << 12), "x"), "bad_field", "set the clock"),
        (Item("door", "open", True, 0, "x"), "bad_field", "from 1 to"),
        (Item("door", "open", True, MOST + 1, "x"), "bad_field", "from 1 to"),
        (Item("door", "open", True, NOW, "a b"), "bad_field", "o of door.open"),
        (Item("door", "pos", [10, 1], NOW, "x"), "bad_field", "[0, 0] to [9, 9]"),
        (Item("door", "pos", 5, NOW, "x"), "bad_field", "[x, y]"),
        (Item("door", "open", "x" * 2000, NOW, "x"), "too_large", "too large"),
        (Item("gate", "open", True, NOW, "x"), "forbidden", "no entity 'gate'"),
        (Item("door", "shut", True, NOW, "x"), "forbidden", "has no key 'shut'"),
        (Item("eve", "pos", [1, 1], NOW, "x"), "forbidden", "no entity 'eve'"),
    ],
)
def test_a_wrong_item_is_refused_with_all_that_came_with_it(
    item: Item, code: str, words: str
) -> None:
    state = state_of(AROUND)
    right = Item("door", "open", True, NOW, "x")
    with pytest.raises(Refusal) as refused:
        state.apply([right, item])
    assert refused.value.code == code
    assert words in refused.value.msg
    assert truth(state) == {("door", "open"): False, ("door", "pos"): [1, 1]}
    (own,) = state.put([StateWrite("door", "open", True)])
    assert own.h < NOW + (60_000 << 12), "a clock that was refused has moved nothing"


def test_what_is_so_already_is_no_change() -> None:
    state = state_of(AROUND)
    assert state.put([StateWrite("door", "open", False), StateWrite("ann", "pos", None)]) == []
    rev = state.rev
    assert len(state.put([StateWrite("door", "open", 0)])) == 1, "0 is not false"
    assert state.rev == rev + 1


def adopted(before: Any, after: Any, *writes: StateWrite) -> dict[tuple[str, str], Any]:
    """What is so after a new version of the scene file."""
    state = state_of(AROUND, pack=before)
    state.put(list(writes))
    state._publish()
    rev = state.rev
    state.adopt(after)
    state._publish()
    told = {(item.e, item.k): item.v for item in state.since(rev)}
    assert all(told.get(name, value) == value for name, value in truth(state).items())
    return truth(state)


def test_a_new_version_moves_what_nobody_has_moved() -> None:
    before = pack_of(AROUND, mira=(1, 1), harn=(2, 2), fenn=(3, 3))
    door = Entity("door", {"open": True}, {"open": "player", "pos": "server", "lock": "server"})
    bell = Entity("bell", {"rings": 1}, {"rings": "server", "pos": "server"})
    around = Surroundings(entities={"door": door, "bell": bell})
    after = pack_of(around, mira=(5, 5), harn=(6, 6), quill=(7, 7))
    assert adopted(before, after, StateWrite("harn", "pos", [4, 4])) == {
        ("mira", "pos"): [5, 5],
        ("harn", "pos"): [4, 4],
        ("quill", "pos"): [7, 7],
        ("door", "open"): True,
        ("bell", "rings"): 1,
    }
    assert adopted(before, after, StateWrite("door", "open", 7))["door", "open"] == 7


def test_what_comes_back_with_a_later_version_is_as_the_file_says() -> None:
    state = state_of(AROUND)
    state.put([StateWrite("door", "open", True)])
    state.adopt(pack_of(Surroundings()))
    assert truth(state) == {}
    state.pass_time()
    state.adopt(pack_of(AROUND))
    assert truth(state) == {("door", "open"): False, ("door", "pos"): [1, 1]}
