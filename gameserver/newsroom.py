"""Which NPCs are woken by what happens in the world, and what they answer then."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gameserver.answer import Cue
from gameserver.protocol import new_id, now_ms
from gameserver.streams import Stream
from npc.dialogue import Line
from scenes.conditions import WorldState
from scenes.news import News
from scenes.reactions import Happening

if TYPE_CHECKING:
    from gameserver.session import Session

#: Who tells news, in prompts.
TELLER = "The world"


@dataclass(frozen=True, slots=True, eq=False)
class _Nobody:
    """Stands where a session would: what happens is nobody's line. Its id is no player's."""

    player: str = ""
    name: str = TELLER
    id: str = ""
    away: bool = False


class Newsroom:
    """Finds the news of what happens, and remembers when they last woke somebody."""

    def __init__(self, scene: Stream, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        self._scene = scene
        self._clock = clock
        self._woke: dict[News, float] = {}

    def of(
        self, known: Sequence[News], what: Happening, state: WorldState
    ) -> Iterator[tuple[News, Line]]:
        """The news of a happening in a world that is so, each with the line that tells it."""
        for news in known:
            if news.tell_of(what, state):
                line = Line(new_id("m"), "observed", "", TELLER, None, news.text, now_ms())
                yield news, line

    def wakes(self, news: News) -> bool:
        """Whether these news wake somebody now; asking counts as waking."""
        now = self._clock()
        if not news.wakes or now - self._woke.get(news, -float("inf")) < news.cooldown_s:
            return False
        self._woke[news] = now
        return True

    def cue(self, line: Line) -> Cue:
        """What makes an NPC speak of a line, to everybody."""
        nobody = cast("Session", _Nobody())
        return Cue(line, nobody, time.monotonic(), (self._scene,))
