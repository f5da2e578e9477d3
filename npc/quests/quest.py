"""What a quest is: stages, what leads from one to the next, and what holds in each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scenes.conditions import Condition
from scenes.document import Scalar
from scenes.reactions import Happening, same

#: In `Stage.tells` and `Stage.allows`: everybody in the scene.
EVERYBODY = "*"


@dataclass(frozen=True, slots=True)
class Trigger:
    """What a step waits for.

    Attributes:
        cause: an event of the game, or the result of an NPC's action.
        name: of the event or action.
        npc: who acted; "" for events, and for anybody.
        ok: whether the action worked.
        fields: of the event's data or the action's arguments, each with the values it may have.
    """

    cause: Literal["event", "action"]
    name: str
    npc: str = ""
    ok: bool = True
    fields: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()

    def fits(self, happening: Happening) -> bool:
        """Whether it waits for this."""
        details = happening.details
        if (self.cause, self.name) != (happening.cause, happening.name):
            return False
        if self.cause == "action" and details.get("ok") is not self.ok:
            return False
        if self.npc and self.npc != details.get("npc"):
            return False
        return all(
            any(same(details.get(key), value) for value in values) for key, values in self.fields
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A way from one stage to another.

    Attributes:
        to: id of the stage it leads to.
        on: what it waits for; None: for `when` alone.
        when: all of these must hold.
        line: in the file.
    """

    to: str
    on: Trigger | None = None
    when: tuple[Condition, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Reward:
    """What players get at a stage."""

    item: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Order:
    """An action that an NPC does when a stage begins, whatever a model says."""

    npc: str
    action: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a quest can be.

    Attributes:
        id: unique in the quest.
        journal: for players: what there is to do; "" for nothing.
        tells: what an NPC knows at this stage, by its id or `EVERYBODY`.
        allows: actions that are open to an NPC at this stage, by its id or `EVERYBODY`.
        steps: ways on; of those that fit, the first is taken.
        after_s: seconds after which it goes on by itself; 0: it waits for ever.
        late: id of the stage to which that leads.
        ending: what kind of end it is ("good"); "" for a stage that is none.
        rewards, orders: what happens when it begins.
        line: in the file.
    """

    id: str
    journal: str = ""
    tells: Mapping[str, str] = field(default_factory=dict)
    allows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    after_s: int = 0
    late: str = ""
    ending: str = ""
    rewards: tuple[Reward, ...] = ()
    orders: tuple[Order, ...] = ()
    line: int = 0

    def leads_to(self) -> Iterator[str]:
        """Ids of the stages that may come next."""
        yield from (step.to for step in self.steps)
        if self.after_s:
            yield self.late


@dataclass(frozen=True, slots=True)
class Quest:
    """A state machine.

    Attributes:
        id: unique in its scene.
        title: for people.
        giver: id of the NPC who has it to give.
        shared: whether everybody in the scene is at the same stage; else each player is at one.
        start: id of the first stage.
        stages: by id, in the file's order.
    """

    id: str
    title: str
    giver: str
    shared: bool
    start: str
    stages: Mapping[str, Stage]

    def binds(self, npc: str, action: str) -> bool:
        """Whether any stage has a say in an action of an NPC: then it is open only where a stage
        allows it.
        """
        return any(allowed(stage, npc, action) for stage in self.stages.values())


def allowed(stage: Stage, npc: str, action: str) -> bool:
    """Whether a stage opens an action to an NPC."""
    return action in stage.allows.get(npc, ()) or action in stage.allows.get(EVERYBODY, ())


def related(quests: Mapping[str, Quest]) -> tuple[str, ...]:
    """Ids of the NPCs about whose feelings a condition asks."""
    found: dict[str, None] = {}
    for quest in quests.values():
        for stage in quest.stages.values():
            for step in stage.steps:
                for condition in step.when:
                    if condition.about == "relation":
                        found[condition.name.rpartition(".")[0]] = None
    return tuple(found)
