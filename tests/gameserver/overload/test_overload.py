"""Who is let in: by what the engine expects, by class, and by what is left out already."""

import pytest

from engine.forecast import Expectation
from engine.prefixes import Prefix
from gameserver.messages import Notice
from gameserver.overload.before import NOTHING, Before
from gameserver.overload.ladder import Level
from gameserver.overload.overload import Overload
from gameserver.overload.settings import OverloadSettings
from gameserver.protocol import Code, Refusal
from gameserver.settings import Flow
from gameserver.tally import Tally
from npc.priority import Priorities

PREFIX = Prefix(0, None, (1, 2, 3))
QUEST, PLAYER, AMBIENT = 0, 1, 2


class Oracle:
    """An engine that expects what it is told to."""

    def __init__(self) -> None:
        self.seconds = {QUEST: 0.1, PLAYER: 0.1, AMBIENT: 0.1}
        self.alone_s = 0.1
        self.speech_s = self.speech_alone_s = 0.0

    def expect(self, priority: int, prefix: Prefix | None = None) -> Expectation:
        seconds = self.seconds[priority]
        return Expectation(seconds, self.alone_s, self.speech_s, self.speech_alone_s)


class Stage:
    """An `Overload` whose clock and engine do as they are told."""

    def __init__(self, **changes: object) -> None:
        self.engine, self.tally, self.told = Oracle(), Tally(), list[Notice]()
        settings = OverloadSettings(**changes)  # type: ignore[arg-type]
        self.overload = Overload(
            settings,
            Flow(),
            Priorities(),
            self.engine,  # type: ignore[arg-type]
            self.tally,
        )
        self.overload.on_change = self.told.append
        self.now = 0.0

    def rise_to(self, level: Level) -> None:
        """Let all wait so long that the level is reached, and then as before."""
        before, self.engine.seconds = self.engine.seconds, dict.fromkeys((0, 1, 2), 99.0)
        while self.overload.level < level:
            self.look()
        self.engine.seconds = before

    def look(self, late_s: float = 0.0) -> None:
        self.now += 0.25
        self.overload.look(self.now, late_s)

    def admit(self, priority: int, before: Before = NOTHING, *, has_barks: bool = False) -> str:
        return self.overload.admit(priority, PREFIX, before, has_barks=has_barks)

    def refusal(
        self, priority: int, before: Before = NOTHING, *, has_barks: bool = False
    ) -> Refusal:
        with pytest.raises(Refusal) as caught:
            self.admit(priority, before, has_barks=has_barks)
        return caught.value

    def begins_background(self) -> bool:
        """Whether an NPC that is woken by news is asked to speak."""
        try:
            self.overload.admit(AMBIENT, PREFIX, has_barks=False, background=True)
        except Refusal:
            return False
        return True


def test_a_line_whose_first_word_would_come_too_late_is_refused_with_the_time_to_wait() -> None:
    stage = Stage()
    stage.engine.seconds[PLAYER] = 2.6
    assert stage.admit(PLAYER) == "answer"
    stage.engine.seconds[PLAYER] = 2.8  # of the 3 s that are promised a tenth is kept back
    stage.refusal(PLAYER)
    stage.engine.seconds[PLAYER] = 4.5
    refusal = stage.refusal(PLAYER)
    assert refusal.code == Code.BUSY
    assert refusal.retry_ms == 3150  # until half of the patience is left
    assert (refusal.limit, refusal.actual) == (2700, 4500)
    assert stage.tally.gauges()["lines_refused"] == 2


def test_what_an_npc_has_to_say_first_counts_for_the_promise() -> None:
    stage = Stage()
    stage.engine.speech_s = 2.0
    assert stage.admit(PLAYER, Before(lines=1)) == "answer"
    stage.engine.seconds[PLAYER] = 1.0
    assert stage.admit(PLAYER) == "answer"
    assert stage.refusal(PLAYER, Before(lines=1)).actual == 4000


def test_nobody_is_refused_for_talk_that_would_take_as_long_on_an_idle_machine() -> None:
    stage = Stage()
    stage.engine.speech_s = stage.engine.speech_alone_s = 20.0
    assert stage.admit(PLAYER, Before(asked_s=1.0, speaks_s=1.0)) == "answer"
    stage.engine.speech_alone_s = 5.0
    stage.refusal(PLAYER, Before(asked_s=1.0, speaks_s=1.0))


def test_quest_givers_have_a_larger_share() -> None:
    stage = Stage()
    stage.engine.seconds = {QUEST: 8.0, PLAYER: 8.0, AMBIENT: 8.0}
    assert stage.admit(QUEST) == "answer"
    stage.refusal(PLAYER)
    stage.engine.seconds[QUEST] = 10.0
    stage.refusal(QUEST)


def test_nobody_is_refused_for_a_machine_that_is_slow_but_idle() -> None:
    stage = Stage()
    stage.engine.alone_s = 20.0
    stage.engine.seconds[PLAYER] = 20.0
    assert stage.admit(PLAYER) == "answer"
    stage.look()
    assert stage.overload.gauges()["overload_pressure"] == 0
    stage.engine.seconds[PLAYER] = 41.0
    stage.refusal(PLAYER)


def test_without_a_limit_nobody_is_refused() -> None:
    stage = Stage(first_word_s=0, quest_first_word_s=0)
    stage.engine.seconds = dict.fromkeys((0, 1, 2), 1000.0)
    for _ in range(100):
        stage.look()
    assert stage.admit(PLAYER) == stage.admit(QUEST) == "answer"
    assert stage.overload.level == Level.NORMAL


def test_each_level_leaves_out_more_and_quest_givers_lose_no_words() -> None:
    stage = Stage()
    seen = []
    for level in Level:
        stage.rise_to(level)
        overload = stage.overload
        assert overload.brevity(QUEST) == 1.0
        seen.append((overload.merge_s, overload.brevity(PLAYER), overload.hurries, overload.quiet))
    assert seen == [
        (0.033, 1.0, False, False),
        (0.1, 1.0, False, False),
        (0.1, 0.5, True, False),
        (0.1, 0.5, True, True),
        (0.1, 0.5, True, True),
        (0.1, 0.5, True, True),
    ]


@pytest.mark.parametrize("level", [Level.QUIET, Level.BARKS, Level.REFUSE])
def test_where_it_is_quiet_one_in_twenty_turns_is_still_background(level: Level) -> None:
    stage = Stage()
    assert stage.begins_background()
    stage.rise_to(level)
    begun, longest, since = 0, 0, 0
    for _ in range(200):
        stage.admit(PLAYER)
        since += 1
        if stage.begins_background():
            begun, longest, since = begun + 1, max(longest, since), 0
    assert begun == 10 - (longest > 20)  # twentieths add up to a little less than one
    assert longest <= 21


def test_background_turns_are_not_saved_up_for_a_flood_nor_owed_for_lines_refused() -> None:
    stage = Stage()
    stage.rise_to(Level.QUIET)
    for _ in range(1000):
        stage.admit(PLAYER)
    assert [stage.begins_background() for _ in range(4)] == [True, True, False, False]
    stage.engine.seconds[PLAYER] = 4.0
    for _ in range(100):
        stage.refusal(PLAYER)
    assert not stage.begins_background()


def test_none_is_background_if_the_settings_say_so() -> None:
    stage = Stage(background_share=0)
    stage.rise_to(Level.QUIET)
    for _ in range(100):
        stage.admit(PLAYER)
    assert not stage.begins_background()


def test_barks_come_before_long_waits_and_only_from_those_who_have_some() -> None:
    stage = Stage()
    stage.rise_to(Level.BARKS)
    assert stage.admit(PLAYER, has_barks=True) == "answer", "nobody is before it"
    stage.engine.seconds = dict.fromkeys((0, 1, 2), 2.0)
    assert stage.admit(PLAYER, has_barks=True) == "bark"
    assert stage.admit(PLAYER) == "answer"
    assert stage.admit(QUEST, has_barks=True) == "answer"
    stage.engine.seconds[PLAYER] = 4.0
    assert stage.admit(PLAYER, has_barks=True) == "bark"
    stage.refusal(PLAYER)


def test_on_the_last_level_lines_are_refused_sooner_but_not_quest_givers() -> None:
    stage = Stage()
    stage.rise_to(Level.REFUSE)
    stage.engine.seconds = dict.fromkeys((0, 1, 2), 2.0)
    stage.refusal(PLAYER, has_barks=True)
    assert stage.admit(QUEST) == "answer"
    stage.engine.seconds[PLAYER] = 1.0
    assert stage.admit(PLAYER) == "answer"


def test_clients_are_told_of_each_level_and_of_the_way_back() -> None:
    stage = Stage()
    assert stage.overload.notice() is None
    stage.rise_to(Level.SHORT)
    while stage.overload.level:
        stage.look()
    assert [(n.code, n.data["level"], n.data["name"]) for n in stage.told] == [
        ("degraded", 1, "merge"),
        ("degraded", 2, "short"),
        ("degraded", 1, "merge"),
        ("degraded", 0, "normal"),
    ]
    assert {notice.data["reason"] for notice in stage.told} == {"engine"}
    assert stage.overload.notice() == stage.told[-1], "who comes back may have missed it"
    assert stage.tally.gauges()["degraded_short"] == 1


def test_a_late_event_loop_is_pressure_too() -> None:
    stage = Stage()
    while not stage.overload.level:
        stage.look(late_s=0.3)
    assert stage.told[0].data["reason"] == "lag"
    for _ in range(40):
        stage.look()
    assert stage.overload.level == Level.NORMAL
