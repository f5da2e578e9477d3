"""The `state:` section of the config file; what players may write is in `limits`."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
Rate = Annotated[float, msgspec.Meta(gt=0)]
Size = Annotated[int, msgspec.Meta(ge=0)]


class StateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How world state reaches clients, and how long removals are known."""

    #: Changes are gathered for so long. Ten positions a second are enough for a client that draws
    #: the way between two of them.
    pace_ms: Size = 100
    #: Where a scene has `sight`, moves beyond it are told this often: a map may show them.
    far_ms: Size = 1000
    #: NPCs and quests react to changes of one thing at most this often, and to so many at once: a
    #: wheel that turns is no news each time, and what they do about it may change it again.
    noticed_per_s: Rate = 0.5
    noticed_burst: Count = 4
    #: How far stamps of others may be ahead of our wall clock. Clocks that are set over the network
    #: agree within a second; one that is not set at all must not win for ever.
    drift_ms: Size = 60_000
    #: Removals are known for so long, and so many of them: what comes later from before a removal
    #: does not bring a thing back.
    removed_s: Count = 600
    removed: Count = 1024
