"""The console port: health, metrics, a look inside for developers, and the playground."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import orjson
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.measures import Series
from gameserver.access import LOOPBACK
from gameserver.http import memory, npcs
from gameserver.http.door import Door, from_this_machine
from gameserver.http.metrics import Metrics
from gameserver.http.openai.api import OpenAIApi
from gameserver.readiness import Readiness

STATIC = Path(__file__).parent / "static"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

# The pages need nothing from elsewhere. They do connect to the game port, whose number varies, and
# one may stand beside another (a second player), but in nobody else's page.
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'self'; "
        "base-uri 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Node(npcs.Node, memory.Node, Protocol):
    """What the console needs to know of the node it belongs to."""

    readiness: Readiness

    @property
    def alive(self) -> bool:
        """Whether the parts that must run do run."""

    @property
    def tenants(self) -> Collection[str]:
        """Names of the games on this server."""

    def gauges(self) -> dict[str, float]:
        """All figures by name."""

    def measures(self) -> Sequence[Series]:
        """All histograms of the engine."""

    @property
    def halted(self) -> bool | None:
        """Whether all generation is halted; None before the node is up."""

    def halt(self) -> None:
        """End all generation, and let none begin."""

    def release(self) -> None:
        """Let generation go on."""

    async def reload(self) -> Mapping[str, object] | None:
        """Read the scenes again; what changed and what is wrong, or None before the node is up."""

    def playground(self) -> dict[str, object]:
        """What the playground page needs to find the game, once the node is ready."""


class Console:
    """The console's pages, as an ASGI application.

    Args:
        node: whose console this is.
        host: address it listens on. On loopback, requests that name another host are refused, so
            that a web page elsewhere cannot reach it through a DNS name of its own.
        api: what is served below `/v1`.
    """

    def __init__(self, node: Node, host: str, api: OpenAIApi) -> None:
        self._node = node
        door = Door(api.keys, node.tenants)
        self._metrics = Metrics(node.gauges, node.measures, [api.tally])
        hosts = [*LOOPBACK, "[::1]"] if host in LOOPBACK else ["*"]
        self.app = Starlette(
            routes=[
                Route("/readyz", self._readyz),
                Route("/livez", self._livez),
                Route("/metrics", self._metrics_page),
                Route("/debug/gauges", self._gauges),
                *npcs.npc_routes(node, door),
                *memory.memory_routes(node, door),
                Route("/playground.json", self._playground),
                Route("/halt", self._halt, methods=["GET", "POST"]),
                Route("/release", self._release, methods=["POST"]),
                Route("/reload", self._reload, methods=["POST"]),
                Route("/openapi.json", api.document),
                Mount("/v1", api.app),
                Mount("/", StaticFiles(directory=STATIC, html=True)),
            ],
            middleware=[
                Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
                Middleware(_Headers),
            ],
        )

    async def _readyz(self, request: Request) -> Response:
        readiness = self._node.readiness
        return _json(readiness.report(), 200 if readiness.takes_players else 503)

    async def _livez(self, request: Request) -> Response:
        # A loop that hangs gives no answer at all, which is an answer too.
        alive = self._node.alive
        return _json({"alive": alive}, 200 if alive else 503)

    async def _metrics_page(self, request: Request) -> Response:
        return Response(self._metrics.render(), media_type=PROMETHEUS)

    async def _gauges(self, request: Request) -> Response:
        return _json(self._node.gauges())

    async def _halt(self, request: Request) -> Response:
        return self._switch(request, self._node.halt)

    async def _release(self, request: Request) -> Response:
        return self._switch(request, self._node.release)

    def _switch(self, request: Request, act: Callable[[], None]) -> Response:
        if not from_this_machine(request):
            return _json({"error": "generation is halted from this machine only"}, 403)
        if self._node.halted is None:
            return _json({"error": "this node is not ready"}, 503)
        if request.method == "POST":
            act()
        return _json({"halted": self._node.halted})

    async def _reload(self, request: Request) -> Response:
        if not from_this_machine(request):
            return _json({"error": "scenes are reloaded from this machine only"}, 403)
        report = await self._node.reload()
        if report is None:
            return _json({"error": "this node is not ready"}, 503)
        return _json(report, 422 if report["errors"] else 200)

    async def _playground(self, request: Request) -> Response:
        report = self._node.readiness.report()
        if self._node.readiness.ready:
            report |= self._node.playground()
        return _json(report)


class _Headers:
    """Adds the same headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _json(body: object, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
