"""The console's look at what NPCs remember, all of it JSON:

    GET    /console/memories                         whom NPCs remember
    GET    /console/memories/{player}                all that is kept of a player: an export
    GET    /console/memories/{player}/{npc}?query=   what one NPC remembers of a player, with scores
    DELETE /console/memories/{player}?npc=           forget a player, or what one NPC remembers

Whispers are shown, so the same rule holds as for `gameserver.http.npcs`.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gameserver.http.npcs import Guard
from npc.memory.memories import Memories


class Node(Protocol):
    """What is needed of the node."""

    @property
    def memories(self) -> Memories | None:
        """What NPCs remember; None if they do not, or before the node is up."""

    async def forget(self, player: str, npc: str | None) -> int:
        """Forget a player, to all NPCs or one of them; returns how many records."""


def memory_routes(node: Node, guard: Guard) -> list[Route]:
    """The routes, behind a guard."""

    def answering(
        find: Callable[[Memories, Request], Awaitable[object]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if (refused := guard(request)) is not None:
                return refused
            if node.memories is None:
                return _json({"error": "NPCs of this node remember nothing, or not yet"}, 503)
            return _json(await find(node.memories, request))

        return answer

    async def everybody(memories: Memories, request: Request) -> object:
        return {"players": await memories.known()}

    async def export(memories: Memories, request: Request) -> object:
        return await memories.export(request.path_params["player"])

    async def inspect(memories: Memories, request: Request) -> object:
        path, query = request.path_params, request.query_params.get("query", "")
        return {"memories": await memories.inspect(path["npc"], path["player"], query)}

    async def forget(memories: Memories, request: Request) -> object:
        npc = request.query_params.get("npc") or None
        return {"deleted": await node.forget(request.path_params["player"], npc)}

    one = "/console/memories/{player}"
    return [
        Route("/console/memories", answering(everybody)),
        Route(one, answering(export), methods=["GET"]),
        Route(one, answering(forget), methods=["DELETE"]),
        Route(one + "/{npc}", answering(inspect)),
    ]


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
