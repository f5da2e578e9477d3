"""Who pays for what an NPC thinks without being asked: judgements and notes."""

from collections.abc import Callable
from typing import Protocol


class Purse(Protocol):
    """The account of one NPC."""

    def allows(self, player: str) -> bool:
        """Whether something may be computed now about a player; asked before each time."""

    def pay(self, player: str, tokens: int) -> None:
        """Something was, and so many tokens were computed for it."""

    def payer(self, player: str) -> str:
        """Whose account that is: not everywhere is it the only player of that name."""


class Free:
    """Where nobody counts."""

    def allows(self, player: str) -> bool:
        """See `Purse`."""
        return True

    def pay(self, player: str, tokens: int) -> None:
        """See `Purse`."""

    def payer(self, player: str) -> str:
        """See `Purse`."""
        return player


#: The purse of an NPC, by id, in a running scene.
PurseOf = Callable[[str, str], Purse]


def free(stream: str, npc: str) -> Purse:
    """Nobody counts anywhere."""
    return Free()
