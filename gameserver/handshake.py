"""The HTTP side of the game port: health, and who may upgrade to a WebSocket."""

from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import NegotiationError
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from gameserver.protocol import MSGPACK, PATH, SUBPROTOCOL
from gameserver.relay.passage import RELAY_PATH
from gameserver.settings import Settings
from gameserver.tally import Tally

#: Query parameters that look like credentials: those end up in logs and histories.
_SECRETS = frozenset({"token", "access_token", "key", "api_key", "apikey", "jwt", "auth"})
#: The one that may stand there, where it is known: it is good once, and soon nothing.
_TICKET = "ticket"


SUBPROTOCOLS = (Subprotocol(SUBPROTOCOL), Subprotocol(MSGPACK))


def choose_framing(
    connection: ServerConnection, offered: Sequence[Subprotocol]
) -> Subprotocol | None:
    """The first framing we know of those that a client offers, in its order of preference.

    Raises:
        NegotiationError: there is none; the upgrade is answered with 400.
    """
    for name in offered:
        if name in SUBPROTOCOLS:
            return name
    raise NegotiationError("offer one of the subprotocols " + ", ".join(SUBPROTOCOLS))


class Doorman:
    """Answers plain requests and turns away upgrades from foreign web pages.

    Attributes:
        draining: whether health says that the server is going away.
    """

    def __init__(self, settings: Settings, tally: Tally, *, nodes: bool = False) -> None:
        """`nodes`: whether there are others, who send players here, and carry them."""
        self.draining = False
        self._nodes = nodes
        self._secrets = _SECRETS if nodes else _SECRETS | {_TICKET}
        self._origins = frozenset(settings.origins)
        self._tally = tally

    def judge(self, connection: ServerConnection, request: Request) -> Response | None:
        """The response to a request, or None to go on with the upgrade."""
        response = self._judge(connection, request)
        if response is not None:
            self._tally.count(f"http_{response.status_code}")
            if request.method == "HEAD":
                response.body = b""
        return response

    def _judge(self, connection: ServerConnection, request: Request) -> Response | None:
        path, _, query = request.path.partition("?")
        if path == "/healthz":
            return self._health(connection, request.method)
        if path != PATH and not (self._nodes and path == RELAY_PATH):
            return connection.respond(HTTPStatus.NOT_FOUND, "There is nothing here.\n")
        if self._secrets & {name.lower() for name, _ in parse_qsl(query, keep_blank_values=True)}:
            return connection.respond(
                HTTPStatus.BAD_REQUEST, "Credentials do not belong into an address.\n"
            )
        origins = request.headers.get_all("Origin")
        # Game clients send none; with no keys configured that is fine.
        if any(origin not in self._origins for origin in origins):
            return connection.respond(HTTPStatus.FORBIDDEN, "This origin is not allowed.\n")
        return None

    def _health(self, connection: ServerConnection, method: str) -> Response:
        if method not in ("GET", "HEAD"):
            response = connection.respond(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD only.\n")
            response.headers["Allow"] = "GET, HEAD"
            return response
        return connection.respond(HTTPStatus.OK, "draining\n" if self.draining else "ok\n")
