"""Who hears whom: those who are near enough, in a scene that has `hearing`.

A line that not everybody hears is what a whisper is: it has an audience, goes over the private
streams of those who hear it, and is remembered as theirs (see docs/decisions).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gameserver.attendance import Attendance
from gameserver.protocol import Code, Refusal
from gameserver.state.scene_state import SceneState
from npc.cast import OpenScene
from npc.director import choose
from npc.roster import Npc
from scenes.space import Position, distance

if TYPE_CHECKING:
    from gameserver.session import Session


@dataclass(frozen=True, slots=True)
class _Nearby:
    """Those whom a line may be meant for, the nearest first."""

    npcs: Mapping[str, Npc]


@dataclass(frozen=True, slots=True)
class Circle:
    """Those who notice something; None: everybody in the scene.

    Attributes:
        sessions: of players, and of those who watch.
        npcs: ids.
    """

    sessions: frozenset["Session"] | None = None
    npcs: frozenset[str] | None = None

    def holds(self, player: str | None) -> bool:
        """Whether a player is one of them."""
        if self.sessions is None:
            return True
        return any(session.player == player for session in self.sessions)


class Earshot:
    """Distances between those who speak and those who hear. Who is nowhere in particular, is heard
    everywhere and hears everything.
    """

    def __init__(self, state: SceneState, attendance: Attendance) -> None:
        self._state = state
        self._attendance = attendance

    def matters(self, session: "Session") -> bool:
        """Whether it matters where a player is when it speaks."""
        return self._state.hearing > 0 and self._state.place(session.player) is not None

    def listeners(self, session: "Session") -> frozenset["Session"] | None:
        """The sessions that hear a player; None: all of them."""
        return self._within(self._state.place(session.player))

    def around(self, entity: str, pack: OpenScene) -> Circle:
        """Who notices what happens to an entity: those who would hear it speak."""
        here = self._state.position(entity)
        npcs = frozenset(npc for npc in pack.npcs if self._reaches(here, self._state.position(npc)))
        return Circle(self._within(here), None if len(npcs) == len(pack.npcs) else npcs)

    def require(self, session: "Session", npc: str) -> None:
        """Raise `Refusal` (`too_far`) if an NPC does not hear a player."""
        here, there = self._state.place(session.player), self._state.position(npc)
        if not self._reaches(here, there):
            apart, most = _apart(here, there), self._state.hearing
            problem = f"{npc} is {apart:.1f} away and hears as far as {most:g}: go nearer"
            raise Refusal(Code.TOO_FAR, problem)

    def addressee(self, session: "Session", pack: OpenScene, text: str) -> str | None:
        """The NPC who answers a line to nobody in particular: who is named in it, or else the
        nearest of those who hear it; None if nobody does."""
        near = self.near(session, pack)
        return choose(_Nearby(near), text, None) if near else None

    def near(self, session: "Session", pack: OpenScene) -> dict[str, Npc]:
        """The NPCs who hear a player, the nearest first."""
        here = self._state.place(session.player)
        places = {npc: self._state.position(npc) for npc in pack.npcs}
        heard = [npc for npc, there in places.items() if self._reaches(here, there)]
        heard.sort(key=lambda npc: _apart(here, places[npc]))
        return {npc: pack.npcs[npc] for npc in heard}

    def _within(self, here: Position | None) -> frozenset["Session"] | None:
        members, place = self._attendance.members, self._state.place
        near = frozenset(one for one in members if self._reaches(here, place(one.player)))
        return None if len(near) == len(members) else near

    def _reaches(self, here: Position | None, there: Position | None) -> bool:
        if not self._state.hearing or here is None or there is None:
            return True
        return distance(here, there) <= self._state.hearing


def _apart(here: Position | None, there: Position | None) -> float:
    """How far apart two are; who is nowhere in particular comes after those who are near."""
    return math.inf if here is None or there is None else distance(here, there)
