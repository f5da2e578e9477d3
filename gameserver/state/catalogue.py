"""What exists in a running scene, and who may change it."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from gameserver.protocol import Code, Refusal
from scenes.entities import Surroundings, Writer
from scenes.space import POS, Position


class Placed(Protocol):
    """Somebody who may have a place."""

    @property
    def at(self) -> Position | None: ...  # noqa: D102


class Catalogue:
    """Entities of the scene file, NPCs, and players by their ids, where nothing else has those."""

    def __init__(self, surroundings: Surroundings, npcs: Mapping[str, Placed]) -> None:
        self._entities = surroundings.entities
        self._npcs = npcs
        self._of_npc: Mapping[str, Writer] = {POS: "server"}
        keys = (POS, *surroundings.player_keys)
        self._of_player: Mapping[str, Writer] = dict.fromkeys(keys, "owner")

    def is_fixed(self, e: str) -> bool:
        """Whether an entity is there whoever comes and goes."""
        return e in self._entities or e in self._npcs

    def has(self, e: str, k: str) -> bool:
        """Whether there can be such a key of such an entity, if only of a player."""
        return k in self._writers(e)

    def writer(self, e: str, k: str, *, is_here: bool) -> Writer:
        """Who may change a key.

        Args:
            is_here: whether a player of this id is.

        Raises:
            Refusal: `forbidden`: there is no such thing.
        """
        if not is_here and not self.is_fixed(e):
            problem = (
                f"there is no entity {e[:64]!r}: the scene file names them, and players are some"
            )
            raise Refusal(Code.FORBIDDEN, problem)
        writers = self._writers(e)
        if k not in writers:
            problem = f"{e} has no key {k[:64]!r}; it has {', '.join(sorted(writers))}"
            raise Refusal(Code.FORBIDDEN, problem[:300])
        return writers[k]

    def initial(self) -> Iterator[tuple[str, str, Any]]:
        """Entities, keys and values as a scene begins."""
        for npc, placed in self._npcs.items():
            if placed.at is not None:
                yield npc, POS, list(placed.at)
        for entity in self._entities.values():
            for key, value in entity.initial.items():
                yield entity.id, key, value

    def _writers(self, e: str) -> Mapping[str, Writer]:
        if e in self._entities:
            return self._entities[e].writers
        if e in self._npcs:
            return self._of_npc
        return self._of_player
