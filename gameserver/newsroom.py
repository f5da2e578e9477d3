"""Which NPCs are woken by what happens in the world, and what they answer then."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gameserver.admission import TokenBucket
from gameserver.answer import Cue
from gameserver.protocol import new_id, now_ms
from gameserver.settings import Flow
from gameserver.state.earshot import Circle
from gameserver.streams import Stream
from gameserver.tally import Tally
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
    """Finds the news of what happens, and remembers when they last woke somebody.

    An NPC who speaks may act, a game may answer that with an event or another value of a thing, and
    those may wake the next NPC. Nothing here can see such a ring, so all wakes of a scene share a
    bucket, too.
    """

    def __init__(
        self, scene: Stream, flow: Flow, tally: Tally, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` gives monotonic seconds."""
        self._scene = scene
        self._tally = tally
        self._clock = clock
        self._woke: dict[News, float] = {}
        self._wakes = TokenBucket(flow.wakes_per_minute / 60, flow.wakes_per_minute)

    def of(
        self, known: Sequence[News], what: Happening, state: WorldState, circle: Circle
    ) -> Iterator[tuple[News, Line]]:
        """The news of a happening in a world that is so, each with the line that tells it to a
        circle."""
        audience = None
        if circle.sessions is not None:
            audience = frozenset(session.player for session in circle.sessions)
        for news in known:
            if news.tell_of(what, state):
                ident = new_id("m")
                yield (
                    news,
                    Line(
                        ident, "observed", "", TELLER, None, news.text, now_ms(), audience=audience
                    ),
                )

    def wakes(self, news: News) -> bool:
        """Whether these news wake somebody now; asking counts as waking."""
        now = self._clock()
        if not news.wakes or now - self._woke.get(news, -float("inf")) < news.cooldown_s:
            return False
        if self._wakes.take():
            self._tally.count("news_slept_through")
            return False
        self._woke[news] = now
        return True

    def cue(self, line: Line, circle: Circle) -> Cue:
        """What makes an NPC speak of a line, to a circle."""
        nobody, sessions = cast("Session", _Nobody()), circle.sessions
        streams: tuple[Stream, ...] = (self._scene,)
        if sessions is not None:
            streams = tuple(session.private for session in sessions)
        return Cue(line, nobody, time.monotonic(), streams, sessions)
