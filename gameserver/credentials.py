"""What one client has shown of who it is, and what it may do for that."""

import math
import time
from typing import TYPE_CHECKING

from websockets.datastructures import Headers

from gameserver.access import Access, Pass
from gameserver.addresses import Proxies
from gameserver.commands import Auth, Identify
from gameserver.guards import GuardedConnection
from gameserver.nodes.tickets import no_such_ticket, ticket_of
from gameserver.protocol import Close, Code, Refusal
from gameserver.relay.passage import RELAY_PATH, Passage
from gameserver.tenants import account

if TYPE_CHECKING:
    from gameserver.nodes.neighbours import Neighbours


class Credentials:
    """A credential, a ticket, or the word of another node.

    Attributes:
        grant: what the client may do.
        passage: for whom another node speaks; None if it is not one that has connected.
        address: where the client is.
    """

    def __init__(
        self,
        socket: GuardedConnection,
        access: Access,
        proxies: Proxies,
        neighbours: "Neighbours | None",
    ) -> None:
        """Without other nodes there are no tickets, and nobody speaks for others."""
        self.grant = Pass("")
        self.passage: Passage | None = None
        request = socket.request
        headers = request.headers if request is not None else Headers()
        peer = str(socket.remote_address[0]) if socket.remote_address else ""
        self.address = proxies.client(peer, headers.get_all("X-Forwarded-For"))
        self._target = request.path if request is not None else ""
        shown = headers.get_all("Authorization")
        self._header = shown[0] if len(shown) == 1 else None  # of several none is meant
        self._access = access
        self._neighbours = neighbours
        self._prepaid: Pass | None = None
        self._asked_again = False

    async def come_through(self) -> None:
        """If this is another node, see for whom it speaks.

        Raises:
            Refusal: `auth_failed`, fatal: nobody knows.
            StoreDown: nobody can tell just now.
        """
        if self._target != RELAY_PATH:
            return
        if self._neighbours is not None and self._header is not None:
            self.passage = await self._neighbours.passages.redeem(self._header)
        if self.passage is None:
            raise Refusal(Code.AUTH_FAILED, "for nodes only", close=Close.AUTH_FAILED)
        self._header, self._prepaid = None, self.passage.grant
        self.address = self.passage.address

    async def redeem(self, wish: Identify) -> None:
        """Take in the ticket that a client shows, if it shows one: it is good once.

        Raises:
            Refusal: fatal, it is not good.
        """
        shown = ticket_of(wish.auth, self._target)
        if shown is None:
            return
        if self._neighbours is None:
            raise no_such_ticket()
        tickets = self._neighbours.tickets
        self._prepaid = await tickets.redeem(shown, wish.player, wish.resume)

    def admit(self, wish: Identify) -> None:
        """Grant what the client has shown to be allowed. Raises `Refusal`, see `Access.admit`."""
        if self.passage is not None and wish.player != self.passage.player:
            msg = "this passage is for another player"
            raise Refusal(Code.FORBIDDEN, msg, close=Close.FORBIDDEN)
        if self._prepaid is not None:
            self.grant = self._prepaid
        else:
            self.grant = self._access.admit(wish.auth, self._header, wish.player)

    def account(self, player: str) -> str:
        """Who that player is, whose credential was admitted."""
        return account(self.grant.tenant, player)

    def refresh(self, auth: Auth, player: str) -> None:
        """Go on with a new credential. Raises `Refusal`, see `Access.admit`; also for one of
        another tenant, which has no such player.
        """
        grant = self._access.admit(auth, self._header, player)
        if grant.tenant != self.grant.tenant:
            msg = "this credential is for another player"
            raise Refusal(Code.FORBIDDEN, msg, close=Close.FORBIDDEN)
        self.grant = grant
        self._asked_again = False

    def must_ask(self, grace_s: float) -> bool:
        """Whether the client is to be asked for a new token, its own having expired: once.

        Args:
            grace_s: how long it may take.

        Raises:
            Refusal: fatal, it took longer.
        """
        expires = self.grant.expires
        late = time.time() - expires if expires is not None else 0.0
        if late > grace_s:
            raise Refusal(Code.AUTH_FAILED, "your token has expired", close=Close.AUTH_FAILED)
        asks = late > 0 and not self._asked_again
        self._asked_again |= asks
        return asks

    def lasts_s(self, grace_s: float) -> float:
        """Seconds until `must_ask` has something to say."""
        if self.grant.expires is None:
            return math.inf
        return self.grant.expires - time.time() + (grace_s if self._asked_again else 0.0)
