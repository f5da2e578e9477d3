"""The lines that wait for one NPC, in order of arrival."""

from collections import deque
from collections.abc import Callable, Iterable

from gameserver.answer import Cue
from gameserver.protocol import Code, Refusal


class WaitingLines:
    """A queue in which no player has more than a share.

    Lines of players without a connection stay in it until they are back, and others pass them.
    """

    def __init__(self, npc: str, share: int, most: int) -> None:
        """
        Args:
            npc: id of the one they wait for.
            share: lines that one player may have waiting.
            most: lines that may wait in all.
        """
        self._npc = npc
        self._share = share
        self._most = most
        self._cues: deque[Cue] = deque()
        self._recollecting: set[str] = set()  # lines that the NPC is still thinking about

    def __len__(self) -> int:
        return len(self._cues)

    @property
    def present(self) -> int:
        """Lines of those who have a connection."""
        return sum(not cue.session.away for cue in self._cues)

    def has_others(self, player: str) -> bool:
        """Whether somebody waits who has a connection and is not this player."""
        return any(cue.session.player != player and not cue.session.away for cue in self._cues)

    @property
    def recollecting(self) -> bool:
        """Whether the NPC thinks about a line, and answers none until it has remembered."""
        return bool(self._recollecting)

    def check(self, player: str, *, speaking: bool) -> None:
        """Raise `Refusal` (`busy`) if another line of a player has no room.

        Args:
            speaking: whether the NPC speaks; otherwise one line is answered next, and counts as
                being answered.
        """
        waiting = sum(cue.session.player == player for cue in self._cues) - (not speaking)
        if waiting >= self._share:
            raise Refusal(
                Code.BUSY,
                f"{self._npc} has a line of yours waiting already",
                retry_ms=1000,
                limit=self._share,
                actual=waiting + 1,
            )
        if len(self._cues) >= self._most:
            raise Refusal(Code.BUSY, f"too many lines wait for {self._npc}", retry_ms=2000)

    def append(self, cue: Cue) -> None:
        """A line comes last."""
        self._cues.append(cue)

    def extend(self, cues: Iterable[Cue]) -> None:
        """Lines come last, in order."""
        self._cues.extend(cues)

    def put_first(self, cue: Cue) -> None:
        """A line comes before all others."""
        self._cues.appendleft(cue)

    def take(self) -> Cue | None:
        """The next line to answer, which waits no longer."""
        cue = next((cue for cue in self._cues if not cue.session.away), None)
        if cue is None or cue.line.id in self._recollecting:
            return None
        self._cues.remove(cue)
        return cue

    def withdraw(self, belongs: Callable[[Cue], bool]) -> list[Cue]:
        """Take out some lines."""
        cues = [cue for cue in self._cues if belongs(cue)]
        for cue in cues:
            self._cues.remove(cue)
        return cues

    def clear(self) -> None:
        """Nobody waits any more."""
        self._cues.clear()

    def recollect(self, line: str) -> None:
        """The NPC thinks about what a line brings to mind."""
        self._recollecting.add(line)

    def recollected(self, line: str) -> None:
        """It is known now, or not waited for any longer."""
        self._recollecting.discard(line)
