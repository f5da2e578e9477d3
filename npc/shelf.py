"""A place for what an NPC must not forget when the server is restarted."""

from typing import Protocol


class Shelf(Protocol):
    """Values by key. Writing never waits: what is put here is kept in the order it came."""

    def take(self) -> dict[str, bytes]:
        """What was here at the beginning, in the order of keys; it can be taken once."""

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key."""

    def drop(self, key: str) -> None:
        """Forget a key."""


class NoShelf:
    """Where nothing is kept."""

    def take(self) -> dict[str, bytes]:
        """Nothing."""
        return {}

    def put(self, key: str, value: bytes) -> None:
        """Let it go."""

    def drop(self, key: str) -> None:
        """There is nothing to forget."""
