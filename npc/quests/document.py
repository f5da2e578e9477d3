"""Quest files, read and checked; every complaint names file, line and field."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npc.persona import Persona
from npc.quests.check import check_ways
from npc.quests.quest import EVERYBODY, Order, Quest, Reward, Stage, Step, Trigger
from npc.relations import AXES
from scenes.conditions import Condition, read_conditions
from scenes.document import Section, read_document
from scenes.pack import ScenePack, lack

MAX_STAGES = 64
MAX_STEPS = 32
MAX_TITLE = 100
MAX_JOURNAL = 500
MAX_TOLD = 1_000
MAX_REWARDS = 16
MAX_ORDERS = 8
_MAX_COUNT = 1_000_000
_MAX_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True)
class _Asked:
    """Conditions and where they stand, to be checked when all quests are known."""

    section: Section
    conditions: tuple[Condition, ...]


def read_quests(pack: ScenePack, people: Mapping[str, Persona]) -> dict[str, Quest]:
    """The quests of a pack by id, in the scene file's order.

    Args:
        people: the pack's NPCs by id.

    Raises:
        PackError: a file is wrong; a stage cannot be reached or left; or a quest speaks of an NPC,
            action, event, item, flag, quest or stage that is not there.
    """
    quests: dict[str, Quest] = {}
    asked: list[_Asked] = []
    for file in pack.quests:
        reader = _Reader(file, pack, people)
        quest = reader.quest()
        if quest.id in quests:
            reader.top.fail("id", f"{quest.id!r} is the id of another quest of this scene")
        quests[quest.id] = quest
        asked += reader.asked
    for place in asked:
        for condition in place.conditions:
            _check_condition(place.section, condition, pack, people, quests)
    return quests


class _Reader:
    """Reads one file.

    Attributes:
        top: the file's fields.
        asked: all conditions of it.
    """

    def __init__(self, file: Path, pack: ScenePack, people: Mapping[str, Persona]) -> None:
        self.top = read_document(file)
        self.asked: list[_Asked] = []
        self._pack = pack
        self._people = people

    def quest(self) -> Quest:
        """The quest that the file describes."""
        top = self.top
        quest_id, title = top.id("id"), top.text("title", MAX_TITLE)
        giver = top.id("giver")
        self._check_npc(top, "giver", giver)
        shared = top.flag("shared", default=False)
        stages = top.entries("stages", MAX_STAGES, self._stage)
        if not stages:
            top.fail("stages", "a quest needs at least two stages: a first one, and an end")
        quest = Quest(quest_id, title, giver, shared, next(iter(stages)), stages)
        top.finish()
        check_ways(top, quest)
        return quest

    def _stage(self, section: Section) -> Stage:
        timeout = section.section("timeout")
        after_s, late = 0, ""
        if timeout is not None:
            after_s = timeout.number("after_s", 1, _MAX_SECONDS, default=0)
            if not after_s:
                timeout.fail("after_s", "is missing")
            late = timeout.id("to")
            timeout.finish()
        stage = Stage(
            id=section.id("id"),
            journal=section.text("journal", MAX_JOURNAL, default=""),
            tells=self._tells(section),
            allows=self._allows(section),
            steps=tuple(map(self._step, section.sections("next", MAX_STEPS))),
            after_s=after_s,
            late=late,
            ending=section.text("ending", 32, default=""),
            rewards=tuple(map(_reward, section.sections("rewards", MAX_REWARDS))),
            orders=tuple(map(self._order, section.sections("orders", MAX_ORDERS))),
            line=section.line,
        )
        section.finish()
        return stage

    def _step(self, section: Section) -> Step:
        step = Step(section.id("to"), self._trigger(section), self._when(section), section.line)
        if step.on is None and not step.when:
            section.fail("", "needs on, when or both; for a pause there is timeout")
        section.finish()
        return step

    def _trigger(self, section: Section) -> Trigger | None:
        inner = section.section("on")
        if inner is None:
            return None
        event = inner.text("event", 64, default="")
        action = inner.text("action", 64, default="")
        if bool(event) == bool(action):
            inner.fail("", "must name one event or one action")
        fields = tuple(inner.scalar_lists("with", 16, 200).items())
        if event:
            if event not in self._pack.events:
                inner.fail("event", f"the scene file lists no event {event!r}")
            inner.finish()
            return Trigger("event", event, fields=fields)
        npc = inner.text("by", 64, default="")
        if npc:
            self._check_npc(inner, "by", npc)
        self._check_action(inner, "action", npc or EVERYBODY, action)
        ok = inner.flag("ok", default=True)
        inner.finish()
        return Trigger("action", action, npc, ok, fields)

    def _when(self, section: Section) -> tuple[Condition, ...]:
        conditions = read_conditions(section)
        self.asked.append(_Asked(section, conditions))
        return conditions

    def _tells(self, section: Section) -> dict[str, str]:
        inner = section.section("tells")
        if inner is None:
            return {}
        for npc in inner.fields():
            self._check_npc(inner, npc, npc, everybody=True)
        return {npc: inner.text(npc, MAX_TOLD) for npc in inner.fields()}

    def _allows(self, section: Section) -> dict[str, tuple[str, ...]]:
        inner = section.section("allows")
        if inner is None:
            return {}
        found: dict[str, tuple[str, ...]] = {}
        for npc in inner.fields():
            self._check_npc(inner, npc, npc, everybody=True)
            names = inner.texts(npc, 32, 64)
            for at, (line, name) in enumerate(names):
                self._check_action(inner, f"{npc}[{at}]", npc, name, line)
            found[npc] = tuple(name for _, name in names)
        return found

    def _order(self, section: Section) -> Order:
        npc, action = section.id("npc"), section.text("action", 64)
        self._check_npc(section, "npc", npc)
        self._check_action(section, "action", npc, action)
        args = section.data("args")
        if args is not None and not isinstance(args, dict):
            section.fail("args", "must be a mapping of the action's arguments")
        known = {arg.name for own in self._actions(npc) if own.name == action for arg in own.args}
        if unknown := set(args or ()) - known:
            section.fail("args", f"{action} has no argument {min(unknown)!r}")
        section.finish()
        return Order(npc, action, args or {})

    def _actions(self, npc: str) -> tuple[Any, ...]:
        if npc == EVERYBODY:
            return tuple(action for one in self._people.values() for action in one.actions)
        return self._people[npc].actions

    def _check_npc(
        self, section: Section, field: str, npc: str, *, everybody: bool = False
    ) -> None:
        if npc not in self._people and not (everybody and npc == EVERYBODY):
            known = ", ".join(self._people)
            section.fail(field, f"no NPC of this scene is {npc!r} (there are {known})")

    def _check_action(
        self, section: Section, field: str, npc: str, name: str, line: int = 0
    ) -> None:
        names = sorted({action.name for action in self._actions(npc)})
        if name not in names:
            who = "nobody here" if npc == EVERYBODY else npc
            known = ", ".join(names) or "none"
            section.fail(field, f"{who} has no action {name!r} (known are {known})", line)


def _reward(section: Section) -> Reward:
    reward = Reward(section.id("item"), section.number("count", 1, _MAX_COUNT, default=1))
    section.finish()
    return reward


def _check_condition(
    section: Section,
    condition: Condition,
    pack: ScenePack,
    people: Mapping[str, Persona],
    quests: Mapping[str, Quest],
) -> None:
    """Complain about a condition that can never hold because nobody can make it true."""
    name, field = condition.name, f"when.{condition.about}"
    if problem := lack(condition, pack):
        section.fail(field, problem)
    match condition.about:
        case "relation":
            npc, _, axis = name.rpartition(".")
            if npc not in people or axis not in AXES:
                known = ", ".join(AXES)
                section.fail(field, f"{name}: must be an NPC's id, a dot, and one of {known}")
        case "quests" if name not in quests:
            section.fail(field, f"{name}: there is no such quest in this scene")
        case "quests":
            for stage in condition.values:
                if stage not in quests[name].stages:
                    section.fail(field, f"{name}: it has no stage {stage!r}")
