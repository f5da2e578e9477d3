"""What nodes say of themselves to each other."""

import hashlib
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec

from gameserver.http.listener import authority

if TYPE_CHECKING:
    from gameserver.settings import Settings
    from gameserver.world import World


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself with every renewal of its leases.

    Attributes:
        node: its name.
        url: where players reach it; "" if they cannot, or it does not know.
        address: where other nodes reach it; the same.
        load: players in its scenes.
        free: scenes that it may still take.
        personas: hashes of the sets of personas in its scenes (`persona_set`).
        version: of the program.
        draining: whether it is going away.
    """

    node: str
    url: str = ""
    address: str = ""
    load: int = 0
    free: int = 1
    personas: frozenset[str] = frozenset()
    version: str = ""
    draining: bool = False


def persona_set(npcs: Iterable[str]) -> str:
    """Names a set of NPC ids, whatever their order."""
    return hashlib.blake2b("\n".join(sorted(npcs)).encode(), digest_size=8).hexdigest()


def card_of(world: "World", settings: "Settings") -> bytes:
    """This node's card as it stands, as bytes."""
    running = world.actors.values()
    packs = {actor.pack.id: actor.pack for actor in running}
    card = Card(
        node=settings.node,
        url=own_url(settings),
        address=settings.nodes.address or own_url(settings),
        load=sum(actor.members for actor in running),
        free=settings.flow.scenes - len(world.actors),
        personas=frozenset(persona_set(pack.npcs) for pack in packs.values()),
        version=version("troupe-npc"),
        draining=world.draining,
    )
    return msgspec.msgpack.encode(card)


def read_card(value: bytes) -> Card:
    """See `card_of`."""
    return msgspec.msgpack.decode(value, type=Card)


def own_url(settings: "Settings") -> str:
    """Where players reach this node; on this machine if settings do not say, or ""."""
    known = settings.port and settings.host in ("127.0.0.1", "localhost", "::1")
    here = f"ws://{authority(settings.host, settings.port)}" if known else ""
    return settings.url or here
