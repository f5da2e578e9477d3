"""What a whole scene has heard and seen, for those of its NPCs who have not been needed yet.

A scene may have many NPCs that nobody speaks to; none of them exists before somebody does. They
have heard and seen what happened all the same.
"""

from collections import deque
from collections.abc import Callable, Collection

import msgspec

from gameserver.protocol import now_ms
from npc.dialogue import Dialogue, Line
from npc.feelings import Feelings
from npc.shelf import Shelf
from scenes.conditions import WorldState
from scenes.reactions import Happening

#: Happenings that are kept for NPCs to come; each may be as large as an event's data.
_NEWS = 64


class Overheard:
    """Lines that the game spoke to everybody."""

    def __init__(self, most: int, shelf: Shelf) -> None:
        """Keeps so many lines, as many as one NPC would remember, on a shelf."""
        self._most = most
        self._shelf = shelf
        self._lines: deque[tuple[str, Line]] = deque()
        for key, value in shelf.take().items():
            self._lines.append((key, msgspec.msgpack.decode(value, type=Line)))

    def hear(self, line: Line) -> None:
        """Take a line in."""
        key = f"{int(self._lines[-1][0]) + 1 if self._lines else 0:012}"
        self._shelf.put(key, msgspec.msgpack.encode(line))
        self._lines.append((key, line))
        if len(self._lines) > self._most:
            self._shelf.drop(self._lines.popleft()[0])

    def forget(self, player: str) -> None:
        """Drop the lines of a player."""
        for key, line in list(self._lines):
            if line.who == player:
                self._lines.remove((key, line))
                self._shelf.drop(key)

    def tell(self, dialogue: Dialogue) -> None:
        """Let an NPC know all of it."""
        for _, line in self._lines:
            dialogue.hear(line)


class Witnessed:
    """What happened lately that NPCs may feel something about."""

    def __init__(self) -> None:
        self._news: deque[tuple[str | None, Callable[[str, Feelings], None]]] = deque(maxlen=_NEWS)

    def see(
        self,
        what: Happening,
        player: str | None,
        state: WorldState,
        *,
        private: bool,
        near: Collection[str] | None,
    ) -> None:
        """Take something in. See `Feelings.happened`.

        Args:
            near: ids of the NPCs who notice it; None: all of them.
        """
        now = now_ms()

        def tell(npc: str, feelings: Feelings) -> None:
            if near is None or npc in near:
                feelings.happened(what, player, now, private=private, state=state)

        self._news.append((player, tell))

    def forget(self, player: str) -> None:
        """Forget what a player has caused."""
        kept = [news for news in self._news if news[0] != player]
        self._news.clear()
        self._news.extend(kept)

    def tell(self, npc: str, feelings: Feelings) -> None:
        """Let an NPC know all of it that it has noticed."""
        for _, tell in self._news:
            tell(npc, feelings)
