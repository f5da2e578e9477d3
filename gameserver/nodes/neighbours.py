"""The other nodes, as the connections of this one need them."""

from dataclasses import dataclass

from gameserver.access import Pass
from gameserver.commands import Command, Identify, SceneJoin
from gameserver.messages import SceneMoved
from gameserver.nodes.card import own_url
from gameserver.nodes.tickets import Tickets
from gameserver.relay.passage import Passages
from gameserver.relay.relay import Relay
from gameserver.settings import Settings
from gameserver.stores.store import Elsewhere


@dataclass(frozen=True, slots=True)
class Neighbours:
    """See above.

    Attributes:
        tickets: for players that are sent from one node to another.
        passages: for nodes that speak for players.
        relay: None if players are sent on, and not carried.
    """

    settings: Settings
    tickets: Tickets
    passages: Passages
    relay: Relay | None

    async def directions(
        self, wish: Command, player: str, grant: Pass, elsewhere: Elsewhere
    ) -> SceneMoved:
        """What a player is told that wants to join a scene, or to go on with a session, which is
        elsewhere. With a relay, it may have no way there: then it comes to us again, for that one.
        """
        ticket = ""
        if isinstance(wish, SceneJoin):
            ticket = await self.tickets.for_scene(player, wish.scene, grant)
        elif isinstance(wish, Identify) and wish.resume is not None:
            ticket = await self.tickets.for_session(player, wish.resume.session, grant)
        url = elsewhere.url if self.relay is None else own_url(self.settings)
        return SceneMoved(url, ticket, 0, elsewhere.node)

    def gauges(self) -> dict[str, float]:
        """How many clients are carried just now."""
        return {} if self.relay is None else self.relay.gauges()
