"""What an NPC has to say before it can answer a line that comes now."""

from dataclasses import dataclass

from engine.forecast import Expectation


@dataclass(frozen=True, slots=True)
class Before:
    """The turns that come before a line's.

    Attributes:
        lines: that wait for the NPC.
        asked_s: how long ago words for the turn that goes on were asked for; None: there is none.
        speaks_s: for how long it has had words; None if it has none yet.
    """

    lines: int = 0
    asked_s: float | None = None
    speaks_s: float | None = None

    def delays(self, each: Expectation) -> Expectation:
        """When the line's first word is due, if every turn goes as `each` would."""
        waits = speeches = float(self.lines)
        if self.asked_s is not None:
            spoken_s = self.speaks_s or 0.0
            waits += 0.0 if self.speaks_s is not None else _left(self.asked_s, each.seconds)
            speeches += _left(spoken_s, each.speech_s)
        return Expectation(
            each.seconds + waits * each.seconds + speeches * each.speech_s,
            each.alone_s + waits * each.alone_s + speeches * each.speech_alone_s,
        )


def _left(passed_s: float, of_s: float) -> float:
    """Share of a time that is still to come."""
    return max(1 - passed_s / of_s, 0.0) if of_s else 0.0


#: An NPC that is free.
NOTHING = Before()
