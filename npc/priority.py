"""Which NPC's words are computed first."""

from typing import Annotated

import msgspec

#: A class of the engine: 0 is most urgent and may take reserved slots.
PriorityClass = Annotated[int, msgspec.Meta(ge=0, le=9)]


class Priorities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine's class for each kind of NPC. A persona's `kind` is one of these fields."""

    #: Players wait for these to go on with the game.
    quest_giver: PriorityClass = 0
    #: Walks with one player, who notices every delay.
    companion: PriorityClass = 1
    #: Buys and sells.
    merchant: PriorityClass = 1
    #: Runs the place and answers everybody.
    host: PriorityClass = 1
    #: Makes the place feel alive; may be late.
    ambient: PriorityClass = 2

    def of(self, kind: str, urgent: bool | None = None) -> int:
        """The class of an NPC of this kind.

        Args:
            urgent: whether players wait for just this answer to go on, if that is known: then it is
                a quest-giver's, and that of a quest-giver for whom nobody waits is a host's.
        """
        if urgent is not None:
            kind = "quest_giver" if urgent else "host" if kind == "quest_giver" else kind
        value: int = getattr(self, kind)
        return value


#: What an NPC can be.
KINDS = Priorities.__struct_fields__
