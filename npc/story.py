"""What one running scene keeps beside its talk: where its quests are, what games have told of their
players, and what its NPCs have done for whom.

The game has authority. It tells what happened (`happened`), what players have (`tell`) and what
became of an action (`settle`); what comes back are the stages that begin by it.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from npc.actions.offer import Act, Offer
from npc.actions.repertoire import Asking, Context, Deed, Repertoire
from npc.notes import NoteSource
from npc.quests.book import SHARED, Change, QuestBook
from npc.quests.quest import Quest
from npc.quests.source import QuestSource
from npc.transcript import Audience
from scenes.actions import Action
from scenes.conditions import WorldState
from scenes.document import Scalar
from scenes.reactions import Happening

#: Players whose context is kept; those who were told of longest ago are forgotten first.
_PLAYERS = 4_096
_ITEM = "item."

#: How an NPC stands to a player, by the names of its feelings.
RelationOf = Callable[[str, str], Mapping[str, float]]


class Script(Protocol):
    """What is played, as its author wrote it."""

    @property
    def meta(self) -> Mapping[str, Scalar]: ...  # noqa: D102
    @property
    def quests(self) -> Mapping[str, Quest]: ...  # noqa: D102
    @property
    def related(self) -> Sequence[str]: ...  # noqa: D102
    def actions(self, npc: str) -> Sequence[Action]: ...  # noqa: D102


def without(kept: Mapping[str, Any], player: str) -> dict[str, Any]:
    """A snapshot of a `Story` that has forgotten a player."""
    quests, contexts = dict(kept["quests"]), dict(kept["contexts"])
    quests["places"] = [place for place in quests["places"] if place[1] != player]
    contexts.pop(player, None)
    return {**kept, "quests": quests, "contexts": contexts}


class Story:
    """The only writer of a running scene's quests, contexts and deeds.

    Attributes:
        book: where the quests are.
        facts: of the world by name, where they are not as the author wrote them.
        clock: gives the time in seconds, as a wall shows it.
        things: gives the values of the scene's entities, for conditions.
    """

    def __init__(
        self, script: Script, relation: RelationOf, clock: Callable[[], float] = time.time
    ) -> None:
        """`relation` may be asked about any NPC of the scene."""
        self.book = QuestBook(script.quests)
        self.facts: dict[str, Scalar] = {}
        self.things: Callable[[], Mapping[str, Scalar]] = dict
        self._script = script
        self._relation = relation
        self.clock = clock
        # By player, then by the NPC they are for ("" is all of them), then by key.
        self._contexts: OrderedDict[str, dict[str, dict[str, Any]]] = OrderedDict()
        self._repertoires: dict[str, Repertoire] = {}

    def adopt(self, script: Script) -> list[Change]:
        """Follow a new version of the pack."""
        self._script = script
        for npc, repertoire in self._repertoires.items():
            repertoire.relearn(script.actions(npc))
        return self.book.adopt(script.quests, self.clock())

    def enter(self, player: str) -> list[Change]:
        """A player comes in."""
        changes = self.book.enter(player, self.clock())
        return changes + self._reconsider(player)

    def leave(self, player: str) -> None:
        """A player has gone."""
        self.book.leave(player)

    def forget(self, player: str) -> None:
        """Delete what is kept about a player."""
        self.book.forget(player)
        self._contexts.pop(player, None)
        for repertoire in self._repertoires.values():
            repertoire.forget(player)

    def tell(self, player: str, items: Mapping[str, Any], npc: str = "") -> list[Change]:
        """A game tells of its player; None takes a thing back.

        Args:
            npc: whom alone it concerns; "" for everybody, quests included.
        """
        context = self._contexts.setdefault(player, {}).setdefault(npc, {})
        self._contexts.move_to_end(player)
        context.update(items)
        for key in [key for key, value in context.items() if value is None]:
            del context[key]
        if len(self._contexts) > _PLAYERS:
            self._contexts.popitem(last=False)
        return [] if npc else self._reconsider(player)

    def happened(self, what: Happening, player: str) -> list[Change]:
        """Something happened, and a player caused it or it concerns one."""
        return self.book.happened(what, player, self._quest_state, self.clock())

    def occurred(self, what: Happening, players: Iterable[str]) -> list[Change]:
        """Something happened that nobody caused: it concerns everybody's quests, and those of
        `players`.
        """
        state_of, now = self._quest_state, self.clock()
        changes = self.book.happened(what, SHARED, state_of, now)
        for player in players:
            changes += self.book.happened(what, player, state_of, now, own=True)
        return changes

    def world(self) -> Mapping[str, Scalar]:
        """How things are, by name."""
        known = {name: fact for name, fact in self.facts.items() if name in self._script.meta}
        return {**self._script.meta, **known}

    def public(self) -> WorldState:
        """How things are for everybody: of quests, those that are."""
        stages = self.book.stages(SHARED)
        shared = {quest: stages[quest] for quest in stages if self._script.quests[quest].shared}
        return WorldState(self.world(), shared, things=self.things())

    def settle(
        self, deed_id: str, player: str | None, ok: bool, data: object
    ) -> tuple[str, Deed, list[Change]] | None:
        """The game of the player whom an action was for says what became of it; None: another
        system of the game does, for whoever it was.

        Returns:
            The NPC who acted, the action, and the stages that begin by it. None if no such action
            waits for an answer of this player.
        """
        for repertoire in self._repertoires.values():
            deed = repertoire.find(deed_id)
            if deed is not None and (player is None or deed.player in ("", player)):
                settled = repertoire.settle(deed_id, ok, data)
                if settled is None:
                    return None
                details = {**deed.act.args, "npc": repertoire.npc, "ok": ok}
                what = Happening("action", deed.act.name, details)
                return repertoire.npc, settled, self.happened(what, player or deed.player)
        return None

    def tick(self) -> list[Change]:
        """Let time pass: for actions that nobody answers, and for stages that end by themselves."""
        now = self.clock()
        for repertoire in self._repertoires.values():
            repertoire.expire(now)
        return self.book.tick(self._quest_state, now)

    def state(self, npc: str, player: str) -> WorldState:
        """How things are, for conditions of an NPC about a player."""
        state = self._state(player, npc)
        return replace(state, relation={**state.relation, **self._relation(npc, player)})

    def offer(self, npc: str, player: str, hearers: Sequence[str]) -> Offer | None:
        """What an NPC may do while it answers a player; None for one that only talks.

        Args:
            hearers: ids of the players who will hear the answer.
        """
        repertoire = self._repertoire(npc)
        asking = self._asking(npc, player, hearers)
        return repertoire.offer(asking, lambda action: self.book.allows(npc, player, action))

    def urgent(self, npc: str, player: str) -> bool:
        """Whether an NPC has a quest for a player that has not ended."""
        return self.book.concerns(npc, player)

    def did(
        self, npc: str, deed_id: str, act: Act, player: str, name: str, audience: Audience
    ) -> Deed:
        """An NPC acts: the game is told now, and has some seconds to say what became of it.

        Args:
            player, name: for whom; "" for everybody.
            audience: who may know of it; None: everybody in the scene.
        """
        asking = self._asking(npc, player, ())
        return self._repertoire(npc).did(deed_id, act, asking, name, audience)

    def sources(self, npc: str) -> tuple[NoteSource, ...]:
        """What the story puts into an NPC's mind, the most important last."""
        return self._repertoire(npc), QuestSource(npc, self.book)

    def context(self, player: str, npc: str = "") -> Context:
        """What a game has told of its player, as an NPC (or with "" a quest) knows it."""
        told = self._contexts.get(player, {})
        return {**told.get("", {}), **(told.get(npc, {}) if npc else {})}

    def snapshot(self) -> dict[str, Any]:
        """What outlives the process, as plain data for JSON: quests, contexts and facts. Actions
        that wait for an answer do not: their clients are gone.
        """
        return {
            "quests": self.book.snapshot(),
            "contexts": dict(self._contexts),
            "facts": dict(self.facts),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a snapshot.

        Raises:
            ValueError: it is no snapshot; nothing has changed.
        """
        contexts = msgspec.convert(kept.get("contexts"), dict[str, dict[str, dict[str, Any]]])
        facts = msgspec.convert(kept.get("facts", {}), dict[str, Scalar])
        self.book.restore(msgspec.convert(kept.get("quests"), dict[str, Any]))
        self._contexts = OrderedDict(contexts)
        self.facts = facts

    def _reconsider(self, player: str) -> list[Change]:
        return self.book.happened(None, player, self._quest_state, self.clock())

    def _quest_state(self, player: str) -> WorldState:
        return self._state(player, "")

    def _state(self, player: str, npc: str) -> WorldState:
        context = self.context(player, npc)
        flags: dict[str, Scalar] = {}
        items: dict[str, float] = {}
        for key, value in context.items():
            if key.startswith(_ITEM) and isinstance(value, (int, float)):
                items[key.removeprefix(_ITEM)] = float(value)
            elif isinstance(value, (str, int, float)):
                flags[key] = value
        relation = {
            f"{npc}.{feeling}": amount
            for npc in self._script.related
            for feeling, amount in self._relation(npc, player).items()
        }
        stages = self.book.stages(player)
        return WorldState(self.world(), stages, flags, items, relation, self.things())

    def _asking(self, npc: str, player: str, hearers: Sequence[str]) -> Asking:
        context = self.context(player, npc)
        return Asking(player, hearers, self.state(npc, player), context, self.clock())

    def _repertoire(self, npc: str) -> Repertoire:
        if npc not in self._repertoires:
            self._repertoires[npc] = Repertoire(npc, self._script.actions(npc))
        return self._repertoires[npc]
