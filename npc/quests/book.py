"""Where the quests of a running scene are, and what moves them.

The game keeps authority: quests move by its events, by what it reports of actions, by what it tells
of items and flags, and by time. Nothing that a model or a player says moves one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from npc.quests.quest import EVERYBODY, Quest, Stage, Step, allowed
from scenes.conditions import WorldState
from scenes.reactions import Happening

#: Owner of a quest that everybody in the scene shares.
SHARED = ""
#: How things are for one player, for the conditions of a quest.
StateOf = Callable[[str], WorldState]


@dataclass(frozen=True, slots=True)
class Change:
    """A stage that has begun.

    Attributes:
        quest, stage: which.
        owner: the player whose quest it is; `SHARED` for everybody's.
        player: who caused it; "" if it was time alone.
        before: id of the stage that ended; "" for the first one.
    """

    quest: Quest
    stage: Stage
    owner: str
    player: str
    before: str


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where one quest is: at which stage, since when (wall clock, seconds), and whether it has
    moved at all.
    """

    stage: str
    since: float
    moved: bool = False


class QuestBook:
    """The only writer of its scene's quests. Time is handed in; players are ids."""

    def __init__(self, quests: Mapping[str, Quest]) -> None:
        self._quests = quests
        self._places: dict[tuple[str, str], Place] = {}

    def adopt(self, quests: Mapping[str, Quest], now: float) -> list[Change]:
        """Follow a new version of the pack: quests whose stage it no longer has begin again, those
        it does not have are forgotten.
        """
        self._quests = quests
        changes = []
        for (quest_id, owner), place in list(self._places.items()):
            quest = quests.get(quest_id)
            if quest is None or quest.shared is not (owner == SHARED):
                del self._places[quest_id, owner]
            elif place.stage not in quest.stages:
                changes.append(self._put(quest, owner, quest.start, "", now, before=place.stage))
        return changes

    def enter(self, player: str, now: float) -> list[Change]:
        """A player comes into the scene: quests that have not begun do so."""
        owners = ((quest, SHARED if quest.shared else player) for quest in self._quests.values())
        return [
            self._put(quest, owner, quest.start, player, now, before="")
            for quest, owner in owners
            if (quest.id, owner) not in self._places
        ]

    def leave(self, player: str) -> None:
        """A player has left: of quests of its own that never moved nothing need be kept."""
        for quest in self._quests.values():
            place = self._places.get((quest.id, player))
            if not quest.shared and place is not None and not place.moved:
                del self._places[quest.id, player]

    def forget(self, player: str) -> None:
        """Delete what is kept about a player."""
        for key in [key for key in self._places if key[1] == player and player != SHARED]:
            del self._places[key]

    def happened(
        self,
        happening: Happening | None,
        player: str,
        state_of: StateOf,
        now: float,
        *,
        own: bool = False,
    ) -> list[Change]:
        """Something happened, or (None) items, flags or relations of a player have changed.

        Args:
            player: who caused it, or whom it concerns; `SHARED` for what nobody caused.
            state_of: how things are for a player; for a shared quest, for the one who caused it.
            own: move only this player's own quests, and not everybody's.
        """
        changes: list[Change] = []
        for quest, owner, place in self._open(player):
            if own and quest.shared:
                continue
            step = self._step(quest, place, happening, state_of(player))
            if step is not None:
                changes += self._follow(quest, owner, step.to, player, state_of, now)
        return changes

    def tick(self, state_of: StateOf, now: float) -> list[Change]:
        """Move the quests whose time at a stage is over."""
        changes: list[Change] = []
        for (quest_id, owner), place in list(self._places.items()):
            quest = self._quests[quest_id]
            stage = quest.stages[place.stage]
            if stage.after_s and now - place.since >= stage.after_s:
                changes += self._follow(quest, owner, stage.late, "", state_of, now)
        return changes

    def stages(self, player: str) -> Mapping[str, str]:
        """The stage of each quest by its id, as it is for a player."""
        return {quest.id: stage.id for quest, stage in self.of(player)}

    def of(self, player: str) -> Iterator[tuple[Quest, Stage]]:
        """All quests, each with its stage for a player."""
        for quest in self._quests.values():
            place = self._places.get((quest.id, SHARED if quest.shared else player))
            yield quest, quest.stages[place.stage if place is not None else quest.start]

    def told(self, npc: str, player: str) -> list[str]:
        """What an NPC knows by the stages that hold for a player."""
        return [
            stage.tells[who]
            for _, stage in self.of(player)
            for who in (EVERYBODY, npc)
            if who in stage.tells
        ]

    def allows(self, npc: str, player: str, action: str) -> bool:
        """Whether the quests have nothing against an action: none speaks of it, or the stage of one
        that does allows it.
        """
        bound = [(quest, stage) for quest, stage in self.of(player) if quest.binds(npc, action)]
        return not bound or any(allowed(stage, npc, action) for _, stage in bound)

    def concerns(self, npc: str, player: str) -> bool:
        """Whether an NPC has a quest for a player that has not ended."""
        return any(quest.giver == npc and not stage.ending for quest, stage in self.of(player))

    def snapshot(self) -> dict[str, Any]:
        """Everything there is to keep, as plain data for JSON."""
        places = [
            [quest, owner, *msgspec.to_builtins(p)] for (quest, owner), p in self._places.items()
        ]
        return {"places": places}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a snapshot, in place of what is known now. Quests and stages that the pack no
        longer has are left out; times go on.

        Raises:
            ValueError: it is no snapshot; nothing has changed.
        """
        rows = msgspec.convert(kept.get("places"), list[tuple[str, str, str, float, bool]])
        places = {}
        for quest_id, owner, stage, since, moved in rows:
            quest = self._quests.get(quest_id)
            if quest is not None and stage in quest.stages and quest.shared is (owner == SHARED):
                places[quest_id, owner] = Place(stage, since, moved)
        self._places = places

    def _open(self, player: str) -> list[tuple[Quest, str, Place]]:
        found = []
        for quest in self._quests.values():
            owner = SHARED if quest.shared else player
            place = self._places.get((quest.id, owner))
            if place is not None:
                found.append((quest, owner, place))
        return found

    def _step(
        self, quest: Quest, place: Place, happening: Happening | None, state: WorldState
    ) -> Step | None:
        for step in quest.stages[place.stage].steps:
            if step.on is not None and (happening is None or not step.on.fits(happening)):
                continue
            if all(condition.holds(state) for condition in step.when):
                return step
        return None

    def _follow(
        self, quest: Quest, owner: str, to: str, player: str, state_of: StateOf, now: float
    ) -> list[Change]:
        """Go to a stage, and on as far as its conditions lead by themselves; each stage once."""
        changes: list[Change] = []
        passed: set[str] = set()
        while to not in passed:
            passed.add(to)
            before = self._places[quest.id, owner].stage
            changes.append(self._put(quest, owner, to, player, now, before=before))
            who = player or owner
            if not who:  # a quest of everybody that time has moved: nobody's items count
                break
            step = self._step(quest, self._places[quest.id, owner], None, state_of(who))
            if step is None:
                break
            to = step.to
        return changes

    def _put(
        self, quest: Quest, owner: str, stage: str, player: str, now: float, *, before: str
    ) -> Change:
        self._places[quest.id, owner] = Place(stage, now, bool(before))
        return Change(quest, quest.stages[stage], owner, player, before)
