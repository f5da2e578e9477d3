"""What a session writes down of itself, so that its player can go on at another process."""

import secrets

import msgspec

from gameserver.protocol import PRIVATE, now_ms
from gameserver.stores.journal import Book, Shelf
from gameserver.streams import empty_log

_DIGEST_BYTES = 32
_MARK_BYTES = 8


class Person(msgspec.Struct, frozen=True, array_like=True):
    """Whose session it is.

    Attributes:
        player: an account, see `gameserver.tenants`.
        address: where it was begun from.
        began: wall clock, ms.
    """

    player: str
    name: str
    address: str
    began: int


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """The pace that its client has asked for."""

    delta_s: float
    paused: bool


class Diary:
    """The book of one session, in the words of sessions.

    Attributes:
        book: where it is written.
        id: of the session.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self.id = book.name.removeprefix("session.")
        self._places: dict[str, tuple[str, str | None]] = {}

    def begin(self, player: str, name: str, address: str) -> None:
        """A new session."""
        self.book.put("person", msgspec.msgpack.encode(Person(player, name, address, now_ms())))

    def token(self, digest: bytes, seal: bytes) -> None:
        """The digest of the only token that opens it, and what `Receipts` seals with the token."""
        self.book.put("token", digest)
        self.book.put("seal", seal)

    def hold(self, digest: bytes) -> None:
        """Whoever is about to take it over with what is known of its token so far, comes too late:
        the same token looks different now."""
        self.book.put("token", digest + secrets.token_bytes(_MARK_BYTES))

    def enter(self, stream: str, scene: str, instance: str | None) -> None:
        """It is in a scene."""
        self.book.put(f"in/{stream}", msgspec.msgpack.encode((scene, instance)))

    def leave(self, stream: str) -> None:
        """It is not in a scene any more."""
        self._places.pop(stream, None)
        self.book.drop(f"in/{stream}")

    def pace(self, pace: Pace) -> None:
        """Its client has asked for another pace."""
        self.book.put("pace", msgspec.msgpack.encode(pace))

    def answers(self) -> Shelf:
        """Where the answers to its commands are kept."""
        return self.book.shelf("answer/")

    def forget(self, player: str) -> None:
        """Drop what others than its own player are told in it, while it is at rest: answers that
        name a player, and whispers."""
        name = msgspec.json.encode(player)
        for ident, answer in self.book.take("answer/").items():
            if name in answer:
                self.book.drop(f"answer/{ident}")
        empty_log(self.book, PRIVATE)

    def settle(self, stream: str) -> None:
        """It has got its seat in one of its `places`."""
        self._places.pop(stream, None)

    # What was here when the session was claimed

    def places(self) -> dict[str, tuple[str, str | None]]:
        """Scene and instance by stream id, as far as it has neither got a seat there nor left: who
        is disturbed while seeing to that, begins again."""
        found = self.book.take("in/")
        self._places.update((key, read_place(value)) for key, value in found.items())
        return dict(self._places)

    # and this once

    def kept_token(self) -> bytes:
        """See `token`."""
        return read_token(self.book.take("token").get("", b""))

    def kept_seal(self) -> bytes | None:
        """See `token`."""
        return self.book.take("seal").get("")

    def kept_pace(self) -> Pace | None:
        """See `pace`."""
        found = self.book.take("pace").get("")
        return None if found is None else msgspec.msgpack.decode(found, type=Pace)


def read_token(value: bytes) -> bytes:
    """The digest of a token, see `Diary.token`; it may have been marked since."""
    return value[:_DIGEST_BYTES]


def read_person(value: bytes) -> Person:
    """What a session's first page says, see `Diary.begin`."""
    return msgspec.msgpack.decode(value, type=Person)


def read_place(value: bytes) -> tuple[str, str | None]:
    """A scene that a session is in, and the instance of it, see `Diary.enter`."""
    return msgspec.msgpack.decode(value, type=tuple[str, str | None])
