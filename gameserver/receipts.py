"""What a session's commands were answered, so that a command sent twice runs once.

A command is known again by a digest, which may tell nothing of a short text (or of a card number
that was taken out of it) to who reads the store. So it is keyed, and the key is stored only under
seal of the token with which the session is taken up, of which the store has but a hash.
"""

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from gameserver.protocol import Code, Encoded, Refusal
from npc.shelf import NoShelf, Shelf

_KEY_BYTES = 32


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
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._shelf = shelf or NoShelf()
        for ident, value in self._shelf.take().items():
            digest, answer = msgspec.msgpack.decode(value, type=tuple[bytes, bytes])
            self._take_in(int(ident), Receipt(digest, Encoded.of(msgspec.json.decode(answer))))

    def seal(self, token: str) -> bytes:
        """The key of all digests, for who has the token. A token seals one key, once."""
        return _xor(self._key, _pad(token))

    def unseal(self, sealed: bytes, token: str) -> None:
        """Take the key up again under which the shelf was filled."""
        self._key = _xor(sealed, _pad(token))

    def recall(self, ident: int, body: bytes) -> Encoded | None:
        """The answer that command `ident` got before; None if it is new.

        Raises:
            Refusal: `duplicate_id`, or `bad_field` for an id that comes too late.
        """
        known = self._kept.get(ident)
        if known is not None:
            if known.digest == self._digest(body):
                return known.answer
            raise Refusal(Code.DUPLICATE_ID, f"id {ident} was another command")
        if ident <= self._highest:
            # No fault of the message: a client may have lost more answers than are remembered.
            raise Refusal(Code.BAD_FIELD, f"ids rise: {ident} came after {self._highest}")
        return None

    def keep(self, ident: int, body: bytes, answer: Encoded) -> None:
        """Remember the answer to a new command."""
        digest = self._digest(body)
        kept = msgspec.msgpack.encode((digest, answer.json))
        self._shelf.put(f"{ident:010}", kept)  # keys are read in their order
        self._take_in(ident, Receipt(digest, answer))

    def forget(self, player: str) -> None:
        """Drop the answers that name a player. Sent again, those commands are too old."""
        name = msgspec.json.encode(player)
        for ident in [i for i, receipt in self._kept.items() if name in receipt.answer.json]:
            self._drop(ident)

    def _digest(self, body: bytes) -> bytes:
        return hashlib.blake2b(body, digest_size=16, key=self._key).digest()

    def _take_in(self, ident: int, receipt: Receipt) -> None:
        self._kept[ident] = receipt
        self._highest = ident
        self._bytes += len(receipt.answer)
        while len(self._kept) > self._count or (self._bytes > self._size and len(self._kept) > 1):
            self._drop(next(iter(self._kept)))

    def _drop(self, ident: int) -> None:
        self._bytes -= len(self._kept.pop(ident).answer)
        self._shelf.drop(f"{ident:010}")


def _pad(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=_KEY_BYTES, person=b"receipts").digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
