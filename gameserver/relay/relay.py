"""Taking clients in whose scene is at another node, and their sessions with them."""

import asyncio

from gameserver.commands import Cursor, Resume
from gameserver.outbox import Outbox
from gameserver.protocol import MSGPACK, PRIVATE, Close
from gameserver.relay.carriage import Carriage, Client, Junction
from gameserver.relay.trail import Frame, Trail
from gameserver.session import Session
from gameserver.stores.store import Elsewhere

_LOOK_S = 0.005


class Relay:
    """Carries clients of this node to others."""

    def __init__(self, junction: Junction) -> None:
        self._junction = junction
        self._carried = 0

    async def resume(self, client: Client, elsewhere: Elsewhere) -> Close | None:
        """Carry a client that goes on with a session of another node: there it is welcomed.

        Returns:
            How to close its socket; None if that is closed.
        """
        assert client.wish.resume is not None
        trail = Trail.of(client.wish.resume, binary=client.socket.subprotocol == MSGPACK)
        return await self._carry(client, trail, elsewhere)

    async def move(
        self,
        client: Client,
        session: Session,
        token: str,
        outbox: Outbox,
        frame: Frame,
        elsewhere: Elsewhere,
    ) -> Close | None:
        """Let a session that has begun here, and is in no scene, go on at the node that has the
        scene it wants, and carry its client.

        Args:
            token: the resume token that the client has.
            outbox: what it has still to be told by us.
            frame: what it wants there.

        Returns:
            As above.
        """
        read = Resume(session.id, token, [Cursor(PRIVATE, outbox.position(session.private))])
        trail = Trail.of(read, binary=client.socket.subprotocol == MSGPACK)
        trail.known = True
        trail.asked(frame)
        await self._junction.sessions.hand_over(session)
        # As fast as it can take it.
        while not outbox.idle and client.socket.close_code is None:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return await self._carry(client, trail, elsewhere)

    def gauges(self) -> dict[str, float]:
        """How many are carried just now."""
        return {"relayed": self._carried}

    async def _carry(self, client: Client, trail: Trail, elsewhere: Elsewhere) -> Close | None:
        self._carried += 1
        try:
            return await Carriage(self._junction, client, trail).run(elsewhere.node)
        finally:
            self._carried -= 1
