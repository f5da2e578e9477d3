"""What happens in the world of a running scene, and who gets to know of it."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gameserver.admission import TokenBucket
from gameserver.attendance import Attendance
from gameserver.backstage import Backstage
from gameserver.commands import RaiseEvent
from gameserver.ensemble import Ensemble
from gameserver.messages import WorldEvent
from gameserver.newsroom import Newsroom
from gameserver.protocol import Code, Refusal
from gameserver.state.earshot import Circle, Earshot
from gameserver.state.scene_state import Change
from gameserver.streams import Latest
from npc.cast import OpenScene
from scenes.document import Scalar
from scenes.reactions import Happening, same

if TYPE_CHECKING:
    from gameserver.session import Session


_EVERYBODY = Circle()


class Happenings:
    """Takes in events, facts and changes of things, of players and of the world; tells players,
    NPCs and the plot.
    """

    def __init__(
        self,
        pack: OpenScene,
        backstage: Backstage,
        attendance: Attendance,
        ensemble: Ensemble,
        earshot: Earshot,
        meta: Latest,
    ) -> None:
        """`meta` is the scene's `scene.meta`."""
        self._pack = pack
        self._attendance = attendance
        self._ensemble = ensemble
        self._earshot = earshot
        self._meta = meta
        self._scene = backstage.scene
        self._plot = backstage.plot
        self._safety = backstage.safety
        self._limits = backstage.settings.limits
        self._overload = backstage.overload
        self._tally = backstage.tally
        self._newsroom = Newsroom(self._scene, backstage.settings.flow, backstage.tally)
        self._pace = backstage.settings.state
        self._changes: dict[str, TokenBucket] = {}  # of each thing

    def adopt(self, pack: OpenScene) -> None:
        """Follow a new version of the pack."""
        self._pack = pack
        self._changes = {name: b for name, b in self._changes.items() if name in pack.noticed}

    def raise_event(self, session: "Session", event: RaiseEvent) -> None:
        """A world event that a player's game may raise if the scene file lists it.

        Raises:
            Refusal: `forbidden` or `too_large`.
        """
        self._attendance.require_player(session)
        if event.name not in self._pack.events and not session.grant.any_event:
            raise Refusal(Code.FORBIDDEN, f"this scene has no event {event.name!r} for players")
        limit, actual = self._limits.event_bytes, len(msgspec.json.encode(event.data))
        if actual > limit:
            raise Refusal(Code.TOO_LARGE, "data is too large", limit=limit, actual=actual)
        data = self._safety.redact_data(event.data, self._pack.id)
        body = WorldEvent(event.name, data, "player", state=False)
        private = event.scope == "player"
        if private:
            session.private.append("world.event", body)
        elif event.scope in (None, "", "scene", "npc"):
            # What happens to an NPC happens in front of everybody.
            self._scene.append("world.event", body)
        else:
            raise Refusal(Code.FORBIDDEN, f"there is no scope {event.scope!r} for events")
        what = _happening(event.name, data)
        self._ensemble.happened(what, session.player, private=private)
        self._plot.happened(what, session.player)
        if not private:
            self._spread(what)

    def happen(self, name: str, data: Any, src: str = "mqtt") -> None:
        """Something happens in the world that no player has caused; see `Bridge`.

        Args:
            data: as JSON, checked for size and shape.
            src: who says so.
        """
        data = self._safety.redact_data(data, self._pack.id)
        self._scene.append("world.event", WorldEvent(name, data, src, state=False))
        what = _happening(name, data)
        self._ensemble.happened(what, None)
        self._plot.occurred(what)
        self._spread(what)

    def change(self, changes: Sequence[Change], player: str | None) -> None:
        """Things are otherwise than before. Who is near them feels, knows and says what the scene
        file has for that, and quests may go on; of a thing that changes all the time only now and
        then.

        Args:
            player: who did it; None for the world.
        """
        for change in changes:
            name, pace = f"{change.e}.{change.k}", self._pace
            bucket = self._changes.setdefault(
                name, TokenBucket(pace.noticed_per_s, pace.noticed_burst)
            )
            if bucket.take():
                self._tally.count("state_unnoticed")
                continue
            what = Happening("thing", name, {"is": change.now, "was": change.before})
            circle = self._earshot.around(change.e, self._pack)
            who = player if circle.holds(player) else None
            private = circle.sessions is not None
            self._ensemble.happened(what, who, private=private, near=circle.npcs)
            self._plot.occurred(what)
            self._spread(what, circle)

    def settle(self, action: str, ok: bool, data: Any) -> None:
        """A system beside the players' games says what became of an NPC's action.

        Raises:
            Refusal: `no_turn`, no such action waits for a result (any more).
        """
        self._plot.settle(None, action, ok, self._safety.redact_data(data, self._pack.id))

    def become(self, name: str, value: Scalar | None, src: str = "mqtt") -> None:
        """A fact of the scene file's `meta` is another now; None: as it is written there. It is no
        happening: nobody feels or says anything. What is so already, is no news.

        Raises:
            Refusal: `forbidden`: the scene file has no such fact.
        """
        if name not in self._pack.meta:
            raise Refusal(Code.FORBIDDEN, f"the meta of {self._pack.id} has no {name!r}")
        value = self._safety.redact_data(value, self._pack.id)
        story = self._plot.story
        before = story.world()[name]
        if value is None:
            story.facts.pop(name, None)
        else:
            story.facts[name] = value
        now = story.world()[name]
        if not same(before, now):
            self._scene.append("world.event", WorldEvent(name, now, src, state=True))
            self._meta.changed()

    def _spread(self, what: Happening, circle: Circle = _EVERYBODY) -> None:
        """Let NPCs know what the scene file says of a happening, and let those speak whom it wakes.
        It is all between those who notice it, as a line is that not everybody hears.

        Nobody is woken for an empty room, nor while the NPC has no words or others wait for theirs:
        then it only knows.
        """
        if circle.sessions is not None and not circle.sessions:
            return
        state = self._plot.story.public()
        for news, line in self._newsroom.of(self._pack.news, what, state, circle):
            woken = None
            if self._may_wake(news.wakes, circle) and self._newsroom.wakes(news):
                with contextlib.suppress(Refusal):
                    floor = self._ensemble.floor(news.wakes)
                    floor.offer(self._newsroom.cue(line, circle), lambda: None)
                    woken = news.wakes
            self._ensemble.hear(line, without=woken, near=circle.npcs)

    def _may_wake(self, npc: str, circle: Circle) -> bool:
        if circle.npcs is not None and npc not in circle.npcs:
            return False
        connected = self._attendance.connected()
        if circle.sessions is not None:
            connected &= circle.sessions
        return bool(connected) and self._overload.hears_background


def _happening(name: str, data: Any) -> Happening:
    return Happening("event", name, data if isinstance(data, dict) else {})
