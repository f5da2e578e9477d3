"""The console's look at what NPCs remember, all of it JSON:

    GET    /console/memories                         whom NPCs remember
    GET    /console/memories/{player}                all that is kept of a player: an export
    GET    /console/memories/{player}/{npc}?query=   what one NPC remembers of a player, with scores
    DELETE /console/memories/{player}?npc=           forget a player, or what one NPC remembers

Who sees what: `gameserver.http.door`. Where there are several games, whoever sees them all must say
whose player is to be forgotten (`?tenant=`): those of one name are not the same.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gameserver.http.door import Door, Refused, answering
from gameserver.tenants import Remit
from npc.memory.memories import Memories


class Node(Protocol):
    """What is needed of the node."""

    @property
    def memories(self) -> Memories | None:
        """What NPCs remember; None if they do not, or before the node is up."""

    def remit(self, game: str | None) -> Remit:
        """What a game may see."""

    async def forget(self, player: str, npc: str | None, game: str | None) -> int:
        """Forget a player, to all NPCs or one of them, in all games or one; returns how many
        records.
        """


def memory_routes(node: Node, door: Door) -> list[Route]:
    """The routes, behind a door."""

    def remembering(
        find: Callable[[Memories, Request, str | None], Awaitable[object]],
    ) -> Callable[..., Awaitable[Response]]:
        async def look(request: Request) -> object:
            game = door.game(request)
            if node.memories is None:
                raise Refused(503, "NPCs of this node remember nothing, or not yet")
            return await find(node.memories, request, game)

        return answering(look)

    async def everybody(memories: Memories, request: Request, game: str | None) -> object:
        return {"players": await memories.known(node.remit(game).scene)}

    async def export(memories: Memories, request: Request, game: str | None) -> object:
        return await memories.export(request.path_params["player"], node.remit(game).scene)

    async def inspect(memories: Memories, request: Request, game: str | None) -> object:
        path, query = request.path_params, request.query_params.get("query", "")
        scenes = node.remit(game).scene
        return {"memories": await memories.inspect(path["npc"], path["player"], query, scenes)}

    async def forget(memories: Memories, request: Request, game: str | None) -> object:
        player, npc = request.path_params["player"], request.query_params.get("npc") or None
        if game is None and door.games:
            whose = ", ".join(door.games)
            raise Refused(400, f"{player} of which game? Name one of {whose} as tenant")
        return {"deleted": await node.forget(player, npc, game)}

    one = "/console/memories/{player}"
    return [
        Route("/console/memories", remembering(everybody)),
        Route(one, remembering(export), methods=["GET"]),
        Route(one, remembering(forget), methods=["DELETE"]),
        Route(one + "/{npc}", remembering(inspect)),
    ]
