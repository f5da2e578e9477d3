"""What the state of things around puts into an NPC's mind, in the scene author's words."""

from collections.abc import Callable

from npc.notes import Moment, Note, NoteSource
from scenes.entities import Surroundings

_TOKENS = 80


class ToldSource(NoteSource):
    """Notes of everybody in a scene: the door is open, the fire is out. What players make of things
    reaches a prompt in this way only: as a choice among sentences of the author.
    """

    def __init__(self, surroundings: Callable[[], Surroundings]) -> None:
        """`surroundings` gives those of the scene's version that is played."""
        self._surroundings = surroundings

    @property
    def tokens(self) -> int:  # type: ignore[override]  # a new version may have other things
        """See `NoteSource`."""
        told = any(entity.told for entity in self._surroundings().entities.values())
        return _TOKENS if told else 0

    def notes(self, moment: Moment) -> list[Note]:
        """See `NoteSource`."""
        things = moment.state.things
        return [
            Note(told.text)
            for entity in self._surroundings().entities.values()
            for told in entity.told
            if told.holds(entity.id, things)
        ]
