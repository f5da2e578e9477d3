"""Which topics mean what. All of them begin with the root that the settings name.

Ids are those of the game (`scenes.document.ID`): none of them can hold a wildcard or a slash, so
nothing that a game or an author names reaches beyond its own level.
"""

from dataclasses import dataclass
from typing import Literal

from scenes.document import ID

Kind = Literal["event", "state"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where something from outside is to go.

    Attributes:
        scene: id of the running scene (`SCENE` or `SCENE.INSTANCE`).
        kind: "event" for what happens, "state" for how things are.
        name: of the event, or of the fact.
    """

    scene: str
    kind: Kind
    name: str


class Topics:
    """The topics below one root."""

    def __init__(self, root: str) -> None:
        self._root = root

    def into(self, scene: str) -> tuple[str, str]:
        """What to subscribe to for a running scene: its events, and how things are in it."""
        return f"{self._root}/scene/{scene}/event/+", f"{self._root}/scene/{scene}/state/+"

    def read(self, topic: str) -> Address | None:
        """What a topic is about; None if nothing is expected there."""
        if not topic.startswith(f"{self._root}/scene/"):
            return None
        levels = topic[len(self._root) + 1 :].split("/")
        if len(levels) != 4 or not all(ID.fullmatch(level) for level in levels):
            return None
        _, scene, kind, name = levels
        if kind == "event":
            return Address(scene, "event", name)
        return Address(scene, "state", name) if kind == "state" else None

    def npc(self, scene: str, npc: str, what: Literal["said", "action", "state"]) -> str:
        """Where it is told what an NPC says, does, or is."""
        return f"{self._root}/scene/{scene}/npc/{npc}/{what}"

    def node(self, node: str) -> str:
        """Where it is told whether a node is there."""
        return f"{self._root}/node/{node}/status"
