"""When there is too much to do, and what is done about it."""

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Rate = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class OverloadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `overload:` section of the config file; docs/operations.md shows what comes of it.

    *Pressure* is how much of the patience below a line that comes now would use up by waiting for
    others: 0 on an idle engine, 1 where it would be refused.
    """

    #: A line is refused with `busy` if its first word would come later than this; 0 refuses none.
    #: Longer silence reads as a fault; an honest refusal does not.
    first_word_s: Seconds = 3.0
    #: The same of a quest-giver. They go first, so this long a wait is for other quest-givers.
    quest_first_word_s: Seconds = 9.0
    #: And of a turn that no player waits for. Ageing bounds what it takes; see docs/scheduling.md.
    background_first_word_s: Seconds = 15.0
    #: The next level is entered after `up_s` of at least this pressure, and left after `down_s` of
    #: at most that one. Between them nothing changes, so that no level comes and goes by itself. A
    #: level shows what it is good for once those who waited before it are through.
    enter: Share = 0.75
    leave: Share = 0.25
    up_s: Rate = 2.5
    down_s: Rate = 5.0
    #: On the last two levels lines are answered with a bark, or refused, from this pressure on:
    #: between the two above, where the level that it takes to stay there lasts.
    relief: Share = 0.5
    #: Event loop this late counts as pressure 1: then it is sockets that are too many.
    lag_ms: Rate = 250.0
    #: Level 1: how long speech is gathered before a frame is sent.
    delta_ms: Annotated[int, msgspec.Meta(ge=0)] = 100
    #: Level 2: this share of the usual length of a reply.
    brevity: Share = 0.5
    #: Level 3: of so many of the turns that players are answered, NPCs speak one by themselves.
    background_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if not self.leave < self.relief < self.enter:
            raise ValueError(
                "leave must be below relief, and relief below enter, but they are "
                f"{self.leave}, {self.relief} and {self.enter}"
            )
