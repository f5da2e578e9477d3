"""The console's look at NPCs: `/console/npcs` and `/console/npcs/{scene}/{npc}`, both JSON.

What is said to NPCs is shown, whispers too. So with API keys the caller must have one; without any,
only callers on this machine are answered.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gameserver.inspection import Inspector


class Node(Protocol):
    """What is needed of the node."""

    @property
    def inspector(self) -> Inspector | None:
        """Looks into the world; None before the node is up."""


#: The answer to somebody who may not look; None for those who may.
Guard = Callable[[Request], Response | None]


def npc_routes(node: Node, guard: Guard) -> list[Route]:
    """The routes, behind a guard."""

    async def overview(request: Request) -> Response:
        if (refused := guard(request)) is not None:
            return refused
        if node.inspector is None:
            return _json({"error": "this node is not ready"}, 503)
        return _json(node.inspector.overview())

    async def sheet(request: Request) -> Response:
        if (refused := guard(request)) is not None:
            return refused
        if node.inspector is None:
            return _json({"error": "this node is not ready"}, 503)
        scene, npc = request.path_params["scene"], request.path_params["npc"]
        found = node.inspector.sheet(scene, npc)
        if found is None:
            return _json({"error": f"no running scene {scene} with an NPC {npc}"}, 404)
        return _json(found)

    return [Route("/console/npcs", overview), Route("/console/npcs/{scene}/{npc}", sheet)]


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
