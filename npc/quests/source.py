"""What the stage of a quest puts into an NPC's mind."""

from npc.notes import Moment, Note, NoteSource
from npc.quests.book import QuestBook

_TOKENS = 160


class QuestSource(NoteSource):
    """Notes of one NPC: what it knows at the stages that hold for the player it answers.

    A stage is no secret: whoever asks the NPC aloud hears the answer with everybody else.
    """

    def __init__(self, npc: str, book: QuestBook) -> None:
        self.tokens = _TOKENS
        self._npc = npc
        self._book = book

    def notes(self, moment: Moment) -> list[Note]:
        """See `NoteSource`."""
        return [Note(text) for text in self._book.told(self._npc, moment.line.who)]
