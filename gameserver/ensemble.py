"""The NPCs of a running scene."""

from collections.abc import Collection
from contextlib import suppress
from functools import partial

from engine.errors import EngineError
from gameserver.attendance import Attendance
from gameserver.backstage import Backstage
from gameserver.budgets import Purse, account_of
from gameserver.floor import Floor
from gameserver.messages import NpcRelation
from gameserver.overheard import Overheard, Witnessed
from gameserver.protocol import Code, Refusal, now_ms
from gameserver.refusals import refusal_of
from npc.cast import OpenScene
from npc.dialogue import Line
from npc.relations import AXES
from npc.told import ToldSource
from scenes.reactions import Happening


class Ensemble:
    """Makes NPCs when they are first needed, and lets all of them, and those to come, know what
    happens.

    Attributes:
        floors: the NPCs that were needed so far.
    """

    def __init__(self, pack: OpenScene, backstage: Backstage, attendance: Attendance) -> None:
        self.floors: dict[str, Floor] = {}
        self._pack = pack
        self._backstage = backstage
        self._attendance = attendance
        self._ledger = backstage.ledger
        self._story = backstage.plot.story
        most = backstage.settings.replies.transcript_lines
        self._overheard = Overheard(most, self._ledger.overheard())
        self._witnessed = Witnessed()

    def floor(self, npc: str) -> Floor:
        """An NPC of the scene, who exists from the moment somebody needs it.

        Raises:
            Refusal: `no_npc`, or what the engine says against it.
        """
        if npc not in self._pack.npcs:
            raise Refusal(Code.NO_NPC, f"nobody here is called {npc[:64]!r}")
        if npc not in self.floors:
            self.floors[npc] = self._make(npc)
        return self.floors[npc]

    def _make(self, npc: str) -> Floor:
        """An NPC who has heard and seen what the others have."""
        try:
            shelf = self._ledger.transcript(npc)
            dialogue = self._pack.dialogue(npc, self._backstage.scene.id, shelf)
        except EngineError as error:
            raise refusal_of(error) from error
        dialogue.present = frozenset(self._attendance.states)
        self._overheard.tell(dialogue)
        if (felt := self._ledger.felt(npc)) is not None:
            dialogue.feelings.restore(felt)
        else:
            self._witnessed.tell(npc, dialogue.feelings)
        told = ToldSource(lambda: self._pack.surroundings)
        dialogue.sources = (told, *dialogue.sources, *self._backstage.plot.sources(npc))
        dialogue.purse = Purse(self._backstage.budgets, account_of(self._backstage.account, npc))
        dialogue.feelings.states = partial(self._story.state, npc)
        return Floor(dialogue, self._backstage)

    def adopt(self, pack: OpenScene) -> None:
        """Follow a new version of the pack; see `SceneActor.adopt`."""
        self._pack = pack
        for npc, floor in self.floors.items():
            floor.gone = npc not in pack.npcs
            if not floor.gone:
                pack.recast(floor.dialogue)
        self.forget_gone()

    def forget_gone(self) -> None:
        """Let go of NPCs that are no longer in the scene and have ended their last turn."""
        for npc in [npc for npc, floor in self.floors.items() if floor.gone and floor.quiet]:
            del self.floors[npc]

    def attend(self) -> None:
        """Others are in the scene, or connected, than before."""
        connected, present = self._attendance.connected(), frozenset(self._attendance.states)
        for floor in self.floors.values():
            floor.dialogue.present = present
            floor.attend(connected)

    def hear(
        self, line: Line, *, without: str | None = None, near: Collection[str] | None = None
    ) -> None:
        """Everybody hears a line, but one who knows it already.

        Args:
            near: ids of the NPCs who hear it; None: all of them.
        """
        if near is None:
            self._overheard.hear(line)
        else:  # they are made for it, so that those who are made later do not know
            for npc in near:
                with suppress(Refusal):
                    self.floor(npc)
        for npc, floor in self.floors.items():
            if npc != without and (near is None or npc in near):
                floor.dialogue.hear(line)

    def happened(
        self,
        what: Happening,
        player: str | None,
        *,
        private: bool = False,
        near: Collection[str] | None = None,
    ) -> None:
        """Let all NPCs feel what they feel about something.

        Args:
            player: who caused it; None for the world.
            private: not everybody could see it.
            near: ids of the NPCs who notice it; None: all of them.
        """
        state, now = self._story.state("", player or ""), now_ms()
        self._witnessed.see(what, player, state, private=private, near=near)
        for npc, floor in self.floors.items():
            if near is None or npc in near:
                floor.dialogue.feelings.happened(what, player, now, private=private)
        self.look()

    def look(self) -> None:
        """Show what NPCs feel by now, and tell players who mean something else to one than before.
        Call about once a second.
        """
        for floor in self.floors.values():
            floor.look()
            feelings = floor.dialogue.feelings
            for player in feelings.take_moved():
                now, scene = feelings.relations.of(player), self._backstage.scene.id
                body = NpcRelation(scene, floor.npc, now.trust, now.affection, now.fear)
                for member in self._attendance.sessions_of(player):
                    member.private.append("npc.relation", body)

    def relation(self, npc: str, player: str) -> dict[str, float]:
        """What an NPC feels about a player, whether or not it was needed so far."""
        floor = self.floors.get(npc)
        if floor is not None:
            relation = floor.dialogue.feelings.relations.of(player)
        elif npc in self._pack.npcs:
            relation = self._pack.npcs.persona(npc).stranger
        else:
            return {}
        return {axis: float(getattr(relation, axis)) for axis in AXES}

    def forget(self, player: str, npc: str | None) -> None:
        """Let all NPCs, or the one with an id, forget what a player has said and what they think of
        the player.
        """
        for name in self._ledger.remembered():  # who was not needed since the scene was opened
            if name in self._pack.npcs:
                self.floor(name)
        if npc is None:
            self._overheard.forget(player)
            self._witnessed.forget(player)
        for floor in self.floors.values():
            if npc in (None, floor.npc):
                floor.forget(player)
