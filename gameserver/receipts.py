"""What a session's commands were answered, so that a command sent twice runs once."""

from collections import OrderedDict
from dataclasses import dataclass

from gameserver.inbound import Message
from gameserver.protocol import Code, Encoded, Refusal


@dataclass(frozen=True, slots=True)
class Receipt:
    """The digest of a command, and its answer."""

    digest: bytes
    answer: Encoded


class Receipts:
    """The newest answers of a session by command id."""

    def __init__(self, count: int, size: int) -> None:
        """Keep at most `count` answers and `size` bytes of them."""
        self._count = count
        self._size = size
        self._kept: OrderedDict[int, Receipt] = OrderedDict()
        self._bytes = 0
        self._highest = -1

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
        self._kept[message.id] = Receipt(message.digest(), answer)
        self._highest = message.id
        self._bytes += len(answer)
        while len(self._kept) > self._count or (self._bytes > self._size and len(self._kept) > 1):
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.answer)
