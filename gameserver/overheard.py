"""What a whole scene heard, for those of its NPCs who have not been needed yet."""

from collections import deque

from npc.dialogue import Dialogue, Line


class Overheard:
    """Lines that the game spoke to everybody.

    A scene may have many NPCs that nobody speaks to; none of them exists before somebody does. They
    have heard what was said all the same.
    """

    def __init__(self, most: int) -> None:
        """Keeps so many lines, as many as one NPC would remember."""
        self._lines: deque[Line] = deque(maxlen=most)

    def hear(self, line: Line) -> None:
        """Take a line in."""
        self._lines.append(line)

    def tell(self, dialogue: Dialogue) -> None:
        """Let an NPC know all of it."""
        for line in self._lines:
            dialogue.hear(line)
