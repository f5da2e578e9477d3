"""What a session's commands were answered, so that a command sent twice runs once."""

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from gameserver.protocol import Code, Encoded, Refusal
from npc.shelf import NoShelf, Shelf


@dataclass(frozen=True, slots=True)
class Receipt:
    """The digest of a command, and its answer."""

    digest: bytes
    answer: Encoded


class Receipts:
    """The newest answers of a session by command id."""

    def __init__(self, count: int, size: int, shelf: Shelf | None = None) -> None:
        """Keep at most `count` answers and `size` bytes of them, those that are on the shelf
        already among them."""
        self._count = count
        self._size = size
        self._kept: OrderedDict[int, Receipt] = OrderedDict()
        self._bytes = 0
        self._highest = -1
        self._shelf = shelf or NoShelf()
        for ident, value in self._shelf.take().items():
            digest, answer = msgspec.msgpack.decode(value, type=tuple[bytes, bytes])
            self._take_in(int(ident), Receipt(digest, Encoded.of(msgspec.json.decode(answer))))

    def recall(self, ident: int, digest: bytes) -> Encoded | None:
        """The answer that command `ident` got before; None if it is new.

        Raises:
            Refusal: `duplicate_id`, or `bad_field` for an id that comes too late.
        """
        known = self._kept.get(ident)
        if known is not None:
            if known.digest == digest:
                return known.answer
            raise Refusal(Code.DUPLICATE_ID, f"id {ident} was another command")
        if ident <= self._highest:
            problem = f"ids rise: {ident} came after {self._highest}"
            raise Refusal(Code.BAD_FIELD, problem, unreadable=True)
        return None

    def keep(self, ident: int, digest: bytes, answer: Encoded) -> None:
        """Remember the answer to a new command."""
        kept = msgspec.msgpack.encode((digest, answer.json))
        self._shelf.put(f"{ident:010}", kept)  # keys are read in their order
        self._take_in(ident, Receipt(digest, answer))

    def _take_in(self, ident: int, receipt: Receipt) -> None:
        self._kept[ident] = receipt
        self._highest = ident
        self._bytes += len(receipt.answer)
        while len(self._kept) > self._count or (self._bytes > self._size and len(self._kept) > 1):
            forgotten, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.answer)
            self._shelf.drop(f"{forgotten:010}")
