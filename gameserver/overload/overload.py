"""Who is let in while there is too much to do, and what is left out for it."""

import asyncio
import math
from collections.abc import Callable
from typing import Literal

from engine.face import AnyEngine
from engine.forecast import Expectation
from engine.prefixes import Prefix
from gameserver.messages import Notice
from gameserver.overload.before import NOTHING, Before
from gameserver.overload.ladder import Ladder, Level
from gameserver.overload.settings import OverloadSettings
from gameserver.protocol import Code, Refusal
from gameserver.settings import Flow
from gameserver.tally import Tally
from npc.priority import Priorities

_PERIOD_S = 0.25
#: On a machine that takes longer than `first_word_s` when idle, a line may take twice as long.
_IDLE_TIMES = 2.0
#: Share of the loop's lateness that is left in the next moment.
_FADES = 0.8
#: Predictions of long waits are right to within a tenth or so: what is promised is to hold for
#: ninety-nine of a hundred, so lines are refused from this share of it on.
_SURE = 0.9
#: A refused client is asked to wait for at least and at most so many seconds.
_SOONEST_S, _LATEST_S = 0.25, 30.0
#: Background turns that may be saved up while it is quiet.
_MOST_OWED = 2.0


class Overload:
    """Looks at the engine and the event loop a few times a second; tells what may be done.

    Attributes:
        on_change: told what clients should know of a new level.
    """

    def __init__(
        self,
        settings: OverloadSettings,
        flow: Flow,
        priorities: Priorities,
        engine: AnyEngine,
        tally: Tally,
    ) -> None:
        self.on_change: Callable[[Notice], None] = lambda notice: None
        self._settings = settings
        self._usual_merge_s = flow.delta_ms / 1000
        self._priorities = priorities
        self._engine = engine
        self._tally = tally
        self._ladder = Ladder(settings)
        self._pressure = 0.0
        self._lag_s = 0.0
        self._owed = 0.0  # background turns that may begin although it is quiet
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._reason = "engine"
        self._has_changed = False

    @property
    def level(self) -> Level:
        """What is left out at the moment."""
        return self._ladder.level

    @property
    def merge_s(self) -> float:
        """How long the speech of a turn that begins now is gathered."""
        if self.level < Level.MERGE:
            return self._usual_merge_s
        return max(self._usual_merge_s, self._settings.delta_ms / 1000)

    def brevity(self, priority: int) -> float:
        """Share of its usual length that a reply of this class may have."""
        return self._settings.brevity if priority and self.level >= Level.SHORT else 1.0

    @property
    def hurries(self) -> bool:
        """Whether an NPC for whom somebody else waits ends its reply with the sentence."""
        return self.level >= Level.SHORT

    @property
    def quiet(self) -> bool:
        """Whether nothing is computed that no player waits for, but for a trickle of speech."""
        return self.level >= Level.QUIET

    @property
    def hears_background(self) -> bool:
        """Whether an NPC may be asked to speak that no player has spoken to."""
        return not self.quiet or self._owed >= 1

    def admit(
        self,
        priority: int,
        prefix: Prefix,
        before: Before = NOTHING,
        *,
        has_barks: bool,
        background: bool = False,
    ) -> Literal["answer", "bark"]:
        """Whether an NPC of a class may be asked for an answer, or is to say a bark.

        Args:
            prefix: of the NPC.
            before: what it has to say first.
            background: whether no player waits for it.

        Raises:
            Refusal: `busy`: the first word would take too long.
        """
        if background and not self.hears_background:
            raise Refusal(Code.BUSY, "players come first", retry_ms=round(1000 * _SOONEST_S))
        how = self._admit(priority, prefix, before, has_barks, background)
        if how == "answer" and self.quiet:
            self._owed += -1 if background else self._settings.background_share
            self._owed = min(self._owed, _MOST_OWED)
        return how

    def _admit(
        self, priority: int, prefix: Prefix, before: Before, has_barks: bool, background: bool
    ) -> Literal["answer", "bark"]:
        """See `admit`; by the first word alone."""
        settings = self._settings
        patience_s = settings.first_word_s if priority else settings.quest_first_word_s
        if background:
            patience_s = settings.background_first_word_s
        if not patience_s:
            return "answer"
        patience_s *= _SURE
        expected = before.delays(self._engine.expect(priority, prefix))
        share = _share(expected, patience_s)
        relieves = priority > 0 and not background and share > settings.relief
        if relieves and self.level == Level.BARKS and has_barks:
            self._tally.count("barks")
            return "bark"
        if share <= 1 and not (relieves and self.level >= Level.REFUSE):
            return "answer"
        self._tally.count("lines_refused")
        wait_s = expected.seconds - settings.relief * patience_s
        raise Refusal(
            Code.BUSY,
            f"the first word would take {expected.seconds:.1f} s",
            retry_ms=math.ceil(1000 * min(max(wait_s, _SOONEST_S), _LATEST_S)),
            limit=round(1000 * patience_s),
            actual=round(1000 * expected.seconds),
        )

    def notice(self) -> Notice | None:
        """What a client should know that comes now; None if nothing was ever left out."""
        return self._notice() if self._has_changed else None

    def start(self) -> None:
        """Look around from now on, in the running loop."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _PERIOD_S
        self._timer = loop.call_at(self._due, self._ring, loop)

    def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self, now: float, late_s: float = 0.0) -> None:
        """See how things are.

        Args:
            now: seconds, of a clock that is never set back.
            late_s: how late the event loop is.
        """
        self._lag_s = max(late_s, _FADES * self._lag_s)
        settings, expect, usual = self._settings, self._engine.expect, self._priorities
        engine = max(
            _share(expect(usual.host), _SURE * settings.first_word_s),
            _share(expect(usual.quest_giver), _SURE * settings.quest_first_word_s),
        )
        lag = 1000 * self._lag_s / settings.lag_ms
        self._pressure = max(engine, lag)
        before = self.level
        if self._ladder.feel(self._pressure, now):
            self._has_changed = True
            if self.level > before:
                self._reason = "engine" if engine >= lag else "lag"
                self._tally.count(f"degraded_{self.level.name.lower()}")
            self.on_change(self._notice())

    def gauges(self) -> dict[str, float]:
        """Level, pressure, and what a line of each class may expect, in seconds."""
        usual = self._priorities
        classes = {"quest": usual.quest_giver, "player": usual.host, "ambient": usual.ambient}
        return {
            "overload_level": self.level,
            "overload_pressure": self._pressure,
            **{
                f"expected_first_word_s_{name}": self._engine.expect(priority).seconds
                for name, priority in classes.items()
            },
        }

    def _notice(self) -> Notice:
        level = self.level
        data = {"level": int(level), "name": level.name.lower(), "reason": self._reason}
        return Notice("degraded", data)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self.look(now, max(now - self._due, 0.0))
        self._due = now + _PERIOD_S
        self._timer = loop.call_at(self._due, self._ring, loop)


def _share(expected: Expectation, patience_s: float) -> float:
    """How much of the patience there is with others a line uses up; 0: nobody is before it."""
    if not patience_s:
        return 0.0
    most_s = max(patience_s, _IDLE_TIMES * expected.alone_s)
    return (expected.seconds - expected.alone_s) / (most_s - expected.alone_s)
