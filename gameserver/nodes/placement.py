"""Which node should run a scene that nobody runs.

Rendezvous hashing (highest random weight; Thaler and Ravishankar 1998): every node computes the
same answer from the list of nodes that live, and a node that comes or goes moves nothing but its
own share. The first key is the set of personas, so that scenes with the same people come to the
node whose engine has them in its cache. No node is loaded much above the average (bounded loads;
Mirrokni, Thorup and Zadimoghaddam 2018): what is too much goes elsewhere, by the scene's id.

This only proposes. Views of the list may differ for a moment; the lease decides. A scene that runs
is never moved for balance.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from gameserver.nodes.card import Card, read_card
from gameserver.nodes.settings import NodesSettings
from gameserver.stores.store import Elsewhere, SharedStore


def propose(
    cards: Collection[Card], scene: str, personas: str, settings: NodesSettings
) -> Card | None:
    """The node that should take a scene; None if none can.

    Args:
        cards: of all nodes that live.
        scene: names it among all scenes.
        personas: its `persona_set`.
    """
    takers = [card for card in cards if card.free > 0 and not card.draining]
    if not takers:
        return None
    average = sum(card.load for card in takers) / len(takers)
    bound = max(settings.idle_players, settings.spread * average)
    home = max(takers, key=lambda card: _weight(card.node, personas))
    if home.load < bound:
        return home
    light = [card for card in takers if card.load < bound]  # whoever is below the average
    return max(
        light, key=lambda card: (personas in card.personas, _weight(card.node, personas, scene))
    )


def _weight(*key: str) -> bytes:
    return hashlib.blake2b("\n".join(key).encode(), digest_size=8).digest()


class Placement:
    """The nodes that live, as far as this one knows, and where it lets scenes begin."""

    def __init__(self, store: SharedStore, node: str, settings: NodesSettings) -> None:
        self._store = store
        self._node = node
        self._settings = settings
        self._cards: dict[str, Card] = {}
        self._placed: Counter[str] = Counter()

    def update(self, cards: Mapping[str, bytes]) -> None:
        """Take in what all nodes said of themselves, by name."""
        self._cards = {name: read_card(card) for name, card in cards.items()}
        self._placed.clear()

    async def card(self, node: str) -> Card | None:
        """What a node has said of itself, if it lives. Raises `StoreDown`."""
        if node not in self._cards and (card := await self._store.card(node)) is not None:
            self._cards[node] = read_card(card)  # we had not heard of it yet
        return self._cards.get(node)

    async def elsewhere(self, bucket: str, personas: str) -> Elsewhere | None:
        """The other node that has the bucket of a scene, or is to have it; None if this one may try
        to claim it.

        Args:
            personas: the scene's `persona_set`.

        Raises:
            StoreDown: nobody can tell just now.
        """
        if self._settings.placement == "arrival":
            return None
        while True:
            proposed = propose(self._loaded(), bucket, personas, self._settings)
            if proposed is None or proposed.node == self._node:
                self._placed[self._node] += 1
                return None
            # Reserved for it, so that whoever asks next hears the same, whatever their list says.
            found = await self._store.reserve(bucket, proposed.node, proposed.url)
            if found is not None:
                self._placed[found.node] += 1
                return None if found.node == self._node else found
            self._cards.pop(proposed.node, None)  # it does not live any more

    def _loaded(self) -> list[Card]:
        """The cards of nodes that players can get to, with a player for each scene that was begun
        since they were written."""
        return [
            msgspec.structs.replace(card, load=card.load + self._placed[name])
            for name, card in self._cards.items()
            if card.url or self._settings.relay
        ]
