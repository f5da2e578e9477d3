"""Which topics mean what. All of them begin with the root that the settings name.

Ids are those of the game (`scenes.document.ID`): none of them can hold a wildcard or a slash, so
nothing that a game or an author names reaches beyond its own level.
"""

from dataclasses import dataclass
from typing import Literal

from scenes.document import ID

Kind = Literal["event", "state", "result", "entity"]
_KINDS: dict[tuple[str, int], Kind] = {
    ("event", 4): "event",
    ("state", 4): "state",
    ("result", 4): "result",
    ("entity", 5): "entity",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where something from outside is to go.

    Attributes:
        scene: id of the running scene (`SCENE` or `SCENE.INSTANCE`).
        kind: "event" for what happens, "state" for facts, "result" for what became of an action,
            "entity" for how a thing is.
        name: of the event or fact; id of the action or entity.
        key: of the entity.
    """

    scene: str
    kind: Kind
    name: str
    key: str = ""


class Topics:
    """The topics below one root."""

    def __init__(self, root: str) -> None:
        self._root = root

    def into(self, scene: str) -> tuple[str, ...]:
        """What to subscribe to for a running scene: all that is read of it."""
        kinds = ("event/+", "state/+", "result/+", "entity/+/+")
        return tuple(f"{self._root}/scene/{scene}/{kind}" for kind in kinds)

    def read(self, topic: str) -> Address | None:
        """What a topic is about; None if nothing is expected there."""
        if not topic.startswith(f"{self._root}/scene/"):
            return None
        levels = topic[len(self._root) + 1 :].split("/")
        kind = _KINDS.get((levels[2], len(levels))) if len(levels) > 3 else None
        if kind is None or not all(ID.fullmatch(level) for level in levels):
            return None
        return Address(levels[1], kind, *levels[3:])

    def npc(self, scene: str, npc: str, what: Literal["said", "action", "state"]) -> str:
        """Where it is told what an NPC says, does, or is."""
        return f"{self._root}/scene/{scene}/npc/{npc}/{what}"

    def result(self, scene: str, action: str) -> str:
        """Where it may be told what became of an NPC's action."""
        return f"{self._root}/scene/{scene}/result/{action}"

    def entity(self, scene: str, entity: str, key: str) -> str:
        """Where it is told how a thing is."""
        return f"{self._root}/scene/{scene}/entity/{entity}/{key}"

    def node(self, node: str) -> str:
        """Where it is told whether a node is there."""
        return f"{self._root}/node/{node}/status"
