"""What can be configured about several nodes on one Redis."""

from typing import Annotated, Literal

import msgspec


class NodesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How nodes share scenes and players. Without `redis` there is one node, which has all."""

    #: Who runs a scene that nobody has: the node that `placement` names, or the one that its first
    #: player came to, where a balancer in front hashes on `?scene=` itself.
    placement: Literal["personas", "arrival"] = "personas"
    #: A node takes new scenes while its players are fewer than so many times the average,
    spread: Annotated[float, msgspec.Meta(gt=1)] = 1.25
    #: or fewer than this: among nodes that have next to nothing to do, warm personas count.
    idle_players: Annotated[int, msgspec.Meta(ge=1)] = 32
    #: Life of a ticket: long enough for one new connection, too short to be worth stealing.
    ticket_s: Annotated[float, msgspec.Meta(gt=0, le=30)] = 30.0
    #: Carry players to the node that has their scene, instead of sending them there: for nodes
    #: that players cannot reach, and browsers that may speak to one host only.
    relay: bool = False
    #: Where other nodes reach this one. None: at `url`, or on this machine.
    address: str | None = None
