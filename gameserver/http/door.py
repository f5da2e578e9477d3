"""Who may look at what players say, and at whose players.

What is said to NPCs is shown, whispers too. So with API keys the caller must have one; without any,
only callers on this machine are answered. A game's own key shows that game alone; who has another
one sees all, or the game that `?tenant=` names.
"""

from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gameserver.access import LOOPBACK
from gameserver.http.openai.auth import caller as caller_of
from gameserver.http.openai.errors import ApiError
from gameserver.keys import Keys
from gameserver.settings import HOUSE


class Refused(Exception):
    """Somebody is told this, and nothing else."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Door:
    """Judges who comes.

    Args:
        keys: of which one is asked for, if there are any.
        tenants: names of the games on this server.

    Attributes:
        games: all of them: the tenants and the house; nothing without tenants.
    """

    def __init__(self, keys: Keys, tenants: Collection[str]) -> None:
        self._keys = keys
        self.games = [*sorted(tenants), HOUSE] if tenants else []

    def game(self, request: Request) -> str | None:
        """The game that somebody looks at, see `gameserver.tenants.Remit`; None: all of them.

        Raises:
            Refused: 401 or 403, they may see nothing; 404, there is no such game that they may see.
        """
        wanted = request.query_params.get("tenant")
        if wanted is not None and wanted not in self.choice(request):
            raise Refused(404, f"there is no game {wanted!r} here")
        return self._own(request) or wanted

    def choice(self, request: Request) -> list[str]:
        """What somebody may name as `?tenant=`. Raises `Refused` as `game` does."""
        own = self._own(request)
        return self.games if own is None else [own]

    def _own(self, request: Request) -> str | None:
        """The one game that somebody may look at; None: all."""
        if len(self._keys):
            try:
                return caller_of(self._keys, request.headers.get("authorization")).tenant
            except ApiError as error:
                raise Refused(error.status, str(error)) from error
        if not from_this_machine(request):
            raise Refused(403, "without API keys this is shown on this machine only")
        return None


def from_this_machine(request: Request) -> bool:
    """Whether a program or a page of this machine asks, not a web page from elsewhere (also not one
    whose DNS name points here), nor somebody elsewhere through a proxy on this machine.
    """
    if request.url.hostname not in LOOPBACK:
        return False
    if "forwarded" in request.headers or "x-forwarded-for" in request.headers:
        return False
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{request.headers.get('host')}":
        return False
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def answering(find: Callable[[Request], Awaitable[object]]) -> Callable[..., Awaitable[Response]]:
    """A page that shows as JSON what is found, or why nothing is (`Refused`)."""

    async def answer(request: Request) -> Response:
        try:
            body, status = await find(request), 200
        except Refused as refused:
            body, status = {"error": str(refused)}, refused.status
        return Response(msgspec.json.encode(body), status, media_type="application/json")

    return answer
