"""What one sees of an NPC: what it is at, its mood, whom it turns to."""

import structlog

from gameserver.messages import Activity, Emotion, NpcState
from gameserver.protocol import now_ms
from gameserver.streams import Latest, Stream
from npc.dialogue import Dialogue
from npc.mood import FAINT, Feeling

_log = structlog.get_logger("troupe.game")


class Countenance:
    """The `npc.state` of one NPC.

    Attributes:
        activity, mood: as they show.
    """

    def __init__(self, dialogue: Dialogue, scene: Stream) -> None:
        self.activity: Activity = "idle"
        self.mood = dialogue.persona.temper.resting
        self._attention: str | None = None
        self._npc = dialogue.persona.id
        self._dialogue = dialogue
        self._state = Latest("npc.state", scene, self._describe)

    def show(self, activity: Activity, attention: str | None) -> None:
        """Be at something, and turn to a player or to nobody."""
        felt = self._felt()
        shown = activity, self.mood if felt is None else felt.name, attention
        if shown != (self.activity, self.mood, self._attention):
            self.activity, self.mood, self._attention = shown
            self._state.changed()

    def look(self) -> None:
        """Show the mood as it is by now: it dies away by itself. Call about once a second, and when
        something has happened.
        """
        self.show(self.activity, self._attention)

    def emotion(self) -> Emotion | None:
        """The mood by now, if it is strong enough to show in what is said."""
        felt = self._felt()
        if felt is None or felt.level < FAINT:
            return None
        return Emotion(felt.name, round(felt.level, 2))

    def _felt(self) -> Feeling | None:
        """Its mood by now; None for a fault in it: whatever an NPC feels, its turns go on."""
        try:
            return self._dialogue.feelings.mood.at(now_ms())
        except Exception:
            _log.exception("a mood is not known", npc=self._npc)
            return None

    def _describe(self, rev: int) -> NpcState:
        return NpcState(self._npc, rev, self.activity, self.mood, self._attention)
