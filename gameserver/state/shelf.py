"""World state in the store: every change at once, but moves, which come too often for that."""

import msgspec

from gameserver.state.registers import Item, Name, Register, Registers
from gameserver.stores.journal import Book, Shelf
from scenes.space import POS

#: Keys of items are ENTITY/KEY.
_HORIZON = "horizon"


class StateShelf:
    """Keeps a map of registers. What moves is written by `keep`."""

    def __init__(self, shelf: Shelf, book: Book) -> None:
        """`shelf` is the part of `book` where it is kept."""
        self._shelf = shelf
        self._journal = book.journal
        self._moved: dict[Name, Register] = {}

    def take(self) -> tuple[Registers, list[Item]]:
        """An empty map that goes on where an earlier owner has ended, and the items to be taken
        in. Once."""
        found = self._shelf.take()
        horizon = found.pop(_HORIZON, None)
        registers = Registers()
        if horizon is not None:
            registers.horizon = msgspec.msgpack.decode(horizon, type=tuple[int, str])
        return registers, [msgspec.msgpack.decode(item, type=Item) for item in found.values()]

    def write(self, register: Register) -> None:
        """A register has changed."""
        item = register.item
        name = (item.e, item.k)
        if item.k == POS and item.v is not None:
            self._moved[name] = register
        else:
            self._moved.pop(name, None)
            self._put(register)
            register.unit = self._journal.written

    def keep(self) -> None:
        """Write down who has moved."""
        moved, self._moved = self._moved, {}
        for register in moved.values():
            self._put(register)

    def drop(self, e: str, k: str) -> None:
        """Nothing is to be known of a register any more."""
        self._moved.pop((e, k), None)
        self._shelf.drop(f"{e}/{k}")

    def move_horizon(self, horizon: tuple[int, str]) -> None:
        """Tombstones were collected; see `Registers.horizon`."""
        self._shelf.put(_HORIZON, msgspec.msgpack.encode(horizon))

    def _put(self, register: Register) -> None:
        item = register.item
        self._shelf.put(f"{item.e}/{item.k}", msgspec.msgpack.encode(item))
