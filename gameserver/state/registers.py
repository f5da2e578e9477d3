"""A replicated map of last-writer-wins registers.

A register is named by an entity and a key. Of two values the one with the higher stamp holds
(`clock`), of equal stamps that of the higher origin: a total order, so that copies which have got
the same items hold the same, in whatever order, how often and by which way those came (Shapiro,
Preguiça, Baquero, Zawirski, "Conflict-free Replicated Data Types", SSS 2011, the LWW-Register).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(order="deterministic").encode

Name = tuple[str, str]  # entity, key


class Item(msgspec.Struct, frozen=True):
    """A value in its place and time: the one form for clients, stores, nodes and brokers.

    Attributes:
        e, k: entity and key.
        v: the value, as JSON; None: removed.
        h: stamp.
        o: origin, who stamped it.
    """

    e: str
    k: str
    v: Any
    h: int
    o: str


class Register:
    """An item as one copy of the map has it.

    Attributes:
        rev: when it was taken in, counted per map.
        size: bytes of it in JSON.
        unit: of the journal, after which others may be told; 0: at once.
    """

    __slots__ = ("item", "rev", "size", "unit")

    def __init__(self, item: Item, rev: int) -> None:
        self.item = item
        self.rev = rev
        self.size = len(_encode(item))
        self.unit = 0


class Registers:
    """One copy of the map.

    Attributes:
        rev: of the newest change.
        horizon: the highest (h, o) among tombstones that were collected. What is not above it and
            has no register here is refused: it may be older than its own removal.
        forgotten: the highest rev of a tombstone that was collected: who has seen less must be
            told everything.
    """

    def __init__(self, horizon: tuple[int, str] = (0, "")) -> None:
        self.rev = 0
        self.horizon = horizon
        self.forgotten = 0
        self._by_name: OrderedDict[Name, Register] = OrderedDict()  # by rising rev
        self._tombstones: OrderedDict[Name, None] = OrderedDict()  # so, too

    def __len__(self) -> int:
        return len(self._by_name) - len(self._tombstones)

    def get(self, e: str, k: str) -> Register | None:
        """The register of a name, a tombstone too; None if nothing is known."""
        return self._by_name.get((e, k))

    def value(self, e: str, k: str) -> Any:
        """What holds now; None if there is no value."""
        register = self._by_name.get((e, k))
        return None if register is None else register.item.v

    def holds(self, e: str, k: str, v: Any) -> bool:
        """Whether this is the value already; None: whether there is none."""
        return _encode(self.value(e, k)) == _encode(v)

    def keys(self, e: str) -> list[str]:
        """The keys of an entity that have a value."""
        return [
            register.item.k
            for register in self._by_name.values()
            if register.item.e == e and register.item.v is not None
        ]

    def merge(self, item: Item) -> Register | None:
        """Take an item in. Returns its register if it is the newest, None if it changes nothing."""
        name = (item.e, item.k)
        known = self._by_name.get(name)
        if known is None:
            if item.h and (item.h, item.o) <= self.horizon:
                return None
        elif not _is_newer(item, known.item):
            return None
        self.rev += 1
        register = self._by_name[name] = Register(item, self.rev)
        self._by_name.move_to_end(name)
        self._tombstones.pop(name, None)
        if item.v is None:
            self._tombstones[name] = None
        return register

    def impose(self, item: Item) -> Register:
        """Let an item hold whatever is known: what the scene file says has no stamp."""
        self._by_name.pop((item.e, item.k), None)
        register = self.merge(item)
        assert register is not None
        return register

    def since(self, rev: int) -> Iterator[Register]:
        """The registers that have changed after `rev`, tombstones too, in order."""
        changed: list[Register] = []
        for register in reversed(self._by_name.values()):
            if register.rev <= rev:
                break
            changed.append(register)
        return reversed(changed)

    def collect(self, before: int, most: int, spare: Callable[[str], bool]) -> list[Name]:
        """Forget tombstones: those with stamps below `before`, and the oldest beyond `most`.

        Args:
            spare: entities whose tombstones stay.

        Returns:
            What was forgotten.
        """
        gone: list[Name] = []
        for name in [name for name in self._tombstones if not spare(name[0])]:
            register = self._by_name[name]
            if register.item.h >= before and len(self._tombstones) <= most:
                continue
            del self._by_name[name], self._tombstones[name]
            self.horizon = max(self.horizon, (register.item.h, register.item.o))
            self.forgotten = max(self.forgotten, register.rev)
            gone.append(name)
        return gone


def _is_newer(item: Item, known: Item) -> bool:
    if (item.h, item.o) != (known.h, known.o):
        return (item.h, item.o) > (known.h, known.o)
    # No writer gives a stamp twice; if one did, all copies should still agree.
    return _encode(item.v) > _encode(known.v)
