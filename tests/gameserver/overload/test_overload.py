"""Who is let in: by what the engine expects, by class, and by what is left out already."""

import pytest

from engine.forecast import Expectation
from engine.prefixes import Prefix
from gameserver.messages import Notice
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

    def expect(self, priority: int, prefix: Prefix | None = None) -> Expectation:
        return Expectation(self.seconds[priority], self.alone_s)


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

    def admit(self, priority: int, *, has_barks: bool = False) -> str:
        return self.overload.admit(priority, PREFIX, has_barks=has_barks)

    def refusal(self, priority: int, *, has_barks: bool = False) -> Refusal:
        with pytest.raises(Refusal) as caught:
            self.admit(priority, has_barks=has_barks)
        return caught.value


def test_a_line_whose_first_word_would_come_too_late_is_refused_with_the_time_to_wait() -> None:
    stage = Stage()
    stage.engine.seconds[PLAYER] = 2.9
    assert stage.admit(PLAYER) == "answer"
    stage.engine.seconds[PLAYER] = 4.5
    refusal = stage.refusal(PLAYER)
    assert refusal.code == Code.BUSY
    assert refusal.retry_ms == 3000  # until half of the patience is left
    assert (refusal.limit, refusal.actual) == (3000, 4500)
    assert stage.tally.gauges()["lines_refused"] == 1


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
        seen.append((overload.merge_s, overload.brevity(PLAYER), overload.quiet))
    assert seen == [
        (0.033, 1.0, False),
        (0.1, 1.0, False),
        (0.1, 0.5, False),
        (0.1, 0.5, True),
        (0.1, 0.5, True),
        (0.1, 0.5, True),
    ]


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
