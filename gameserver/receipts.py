"""What a session's commands were answered, so that a command sent twice runs once."""

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from gameserver.inbound import Message
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

    def recall(self, message: Message) -> Encoded | None:
        """The answer this message got before; None if it is new.

        Raises:
            Refusal: `duplicate_id`, or `bad_field` for an id that comes too late.
        """
        assert message.id is not None
        known = self._kept.get(message.id)
        if known is not None:
            if known.digest == message.digest():
                return known.answer
            raise Refusal(Code.DUPLICATE_ID, f"id {message.id} was another command")
        if message.id <= self._highest:
            problem = f"ids rise: {message.id} came after {self._highest}"
            raise Refusal(Code.BAD_FIELD, problem, unreadable=True)
        return None

    def keep(self, message: Message, answer: Encoded) -> None:
        """Remember the answer to a new message."""
        assert message.id is not None
        receipt = Receipt(message.digest(), answer)
        kept = msgspec.msgpack.encode((receipt.digest, answer.json))
        self._shelf.put(f"{message.id:010}", kept)  # keys are read in their order
        self._take_in(message.id, receipt)

    def _take_in(self, ident: int, receipt: Receipt) -> None:
        self._kept[ident] = receipt
        self._highest = ident
        self._bytes += len(receipt.answer)
        while len(self._kept) > self._count or (self._bytes > self._size and len(self._kept) > 1):
            forgotten, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.answer)
            self._shelf.drop(f"{forgotten:010}")
