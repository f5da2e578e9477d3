"""How one node shows another that it speaks for a player.

It leaves a passage in the store that both share, and names it by 256 random bits, which are good
once. So there is no secret to configure: who may write to the nodes' Redis is a node. The player's
address and rights stand in the passage; nothing that comes over the wire is believed about them.
"""

import hashlib
import secrets

import msgspec

from gameserver.access import Pass
from gameserver.stores.store import SharedStore

#: Where nodes connect to each other, on the game port.
RELAY_PATH = "/v1/relay"
#: Life of a passage: it is used at once.
_LIFE_S = 10.0
_SCHEME = "Bearer "


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a node speaks for.

    Attributes:
        player: who it is.
        grant: what the player's credential allows, which that node has seen.
        address: where the player connects from.
        keep_token: whether the player keeps its resume token, being connected all the while.
    """

    player: str
    grant: Pass
    address: str
    keep_token: bool


class Passages:
    """Issues passages and takes them in."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store

    async def issue(self, passage: Passage) -> str:
        """The header that shows a passage, once. Raises `StoreDown`."""
        secret = secrets.token_urlsafe(32)
        await self._store.leave(_name(secret), msgspec.msgpack.encode(passage), _LIFE_S)
        return _SCHEME + secret

    async def redeem(self, header: str) -> Passage | None:
        """What a node may speak for that shows this header; None: nobody. Raises `StoreDown`."""
        found = await self._store.take(_name(header.removeprefix(_SCHEME)[:128]))
        return None if found is None else msgspec.msgpack.decode(found, type=Passage)


def _name(secret: str) -> str:
    return "relay." + hashlib.sha256(secret.encode()).hexdigest()
