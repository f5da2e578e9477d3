"""The console's look at NPCs: `/console/npcs` and `/console/npcs/{scene}/{npc}`, and at what the
model was given for a turn: `/debug/prompts/{turn}`. All of it is JSON. Who sees what:
`gameserver.http.door`.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from gameserver.http.door import Door, Refused, answering
from gameserver.inspection import Inspector
from gameserver.tenants import Remit


class Prompt(Protocol):
    """What was sent to the model for one turn."""

    @property
    def scene(self) -> str:
        """Where, by the id that the scene runs under."""

    @property
    def text(self) -> str:
        """The prompt, special tokens spelled out."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt as the model got it."""


class Node(Protocol):
    """What is needed of the node."""

    @property
    def inspector(self) -> Inspector | None:
        """Looks into the world; None before the node is up."""

    @property
    def prompts(self) -> Mapping[str, Prompt] | None:
        """Prompts of recent turns by turn id; None where inspection is off."""

    def remit(self, game: str | None) -> Remit:
        """What a game may see."""


def npc_routes(node: Node, door: Door) -> list[Route]:
    """The routes, behind a door."""

    def looking(game: str | None) -> tuple[Inspector, Remit]:
        if node.inspector is None:
            raise Refused(503, "this node is not ready")
        return node.inspector, node.remit(game)

    async def overview(request: Request) -> object:
        inspector, remit = looking(door.game(request))
        shown = msgspec.structs.asdict(inspector.overview(remit))
        return {"games": door.choice(request), **shown}

    async def sheet(request: Request) -> object:
        inspector, remit = looking(door.game(request))
        scene, npc = request.path_params["scene"], request.path_params["npc"]
        found = inspector.sheet(scene, npc, remit)
        if found is None:
            raise Refused(404, f"no running scene {scene} with an NPC {npc}")
        return found

    async def prompt(request: Request) -> object:
        game = door.game(request)
        if node.prompts is None:
            raise Refused(404, "prompts are kept only when started with --inspect")
        turn = request.path_params["turn"]
        found = node.prompts.get(turn)
        if found is None or not node.remit(game).scene(found.scene):
            raise Refused(404, f"no recent turn {turn}")
        return {"turn": turn, "text": found.text, "token_ids": found.token_ids}

    return [
        Route("/console/npcs", answering(overview)),
        Route("/console/npcs/{scene}/{npc}", answering(sheet)),
        Route("/debug/prompts/{turn}", answering(prompt)),
    ]
