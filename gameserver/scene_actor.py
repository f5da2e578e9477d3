"""One running scene: the single writer of its events, its presence and its NPCs' turns.

Methods are synchronous: the event loop runs one of them at a time, to its end.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from engine.ticket import Ticket
from gameserver.answer import Cue
from gameserver.attendance import Attendance
from gameserver.backstage import Backstage
from gameserver.budgets import Budgets
from gameserver.chronicle import read_page
from gameserver.commands import (
    ActionResult,
    ContextItem,
    ContextSet,
    HistoryGet,
    Interrupt,
    Observe,
    Say,
    SceneJoin,
    TurnHeard,
)
from gameserver.ensemble import Ensemble
from gameserver.happenings import Happenings
from gameserver.ledger import Ledger
from gameserver.messages import (
    Gap,
    History,
    Notice,
    PlayerSaid,
    Role,
    SayAccepted,
)
from gameserver.overload.overload import Overload
from gameserver.plot import Plot
from gameserver.protocol import Code, Encoded, Refusal, encode, new_id, now_ms
from gameserver.remains import Remains
from gameserver.safety import Safety
from gameserver.scene_view import view_scene
from gameserver.settings import Settings
from gameserver.state.earshot import Earshot
from gameserver.state.scene_state import SceneState
from gameserver.stores.journal import Book
from gameserver.streams import Latest, Stream
from gameserver.tally import Tally
from gameserver.turn import Turn
from gameserver.wording import clean_line
from npc.cast import OpenScene
from npc.dialogue import Line
from npc.director import choose
from npc.roster import Npc

if TYPE_CHECKING:
    from gameserver.session import Session


class SceneActor:
    """A scene pack being played: who is there, what happened, who speaks.

    Attributes:
        stream: its public events; the stream's id is the scene's.
        pack: what is played, in the version that new turns follow.
        attendance: who is there.
        ensemble: its NPCs.
        floors: those of them that were needed so far.
        happenings: what happens in its world.
        plot: its quests, and what its NPCs do.
        ledger: what it writes down of itself.
        state: where and how things are.
        empty_since: monotonic time at which the last one left; None while somebody is there.
    """

    def __init__(
        self,
        stream_id: str,
        book: Book,
        pack: OpenScene,
        settings: Settings,
        tally: Tally,
        safety: Safety,
        budgets: Budgets,
        overload: Overload,
        *,
        cancel: Callable[[Ticket], None],
        on_prompt: Callable[[str, Ticket], None] | None,
    ) -> None:
        self.ledger = Ledger(book, settings.store.checkpoint_ms)
        self.stream = Stream(stream_id, book.epoch, settings.flow, book)
        self.pack = pack
        self.attendance = Attendance(self.stream, self.ledger)
        self.state = SceneState(self.stream, pack, self.attendance, self.ledger, settings, safety)
        self.plot = Plot(
            self.stream,
            pack,
            self.attendance.members,
            # The NPCs come after the plot that they follow.
            lambda npc, player: self.ensemble.relation(npc, player),
            lambda what, player, private: self.ensemble.happened(what, player, private=private),
        )
        backstage = Backstage(
            scene=self.stream,
            plot=self.plot,
            ledger=self.ledger,
            settings=settings,
            tally=tally,
            safety=safety,
            budgets=budgets,
            overload=overload,
            account=pack.id,
            cancel=cancel,
            on_prompt=on_prompt,
        )
        self.plot.story.things = self.state.things
        self._earshot = Earshot(self.state, self.attendance)
        self.ensemble = Ensemble(pack, backstage, self.attendance)
        self.floors = self.ensemble.floors
        self._meta = Latest("scene.meta", self.stream, self._describe)
        self.happenings = Happenings(
            pack, backstage, self.attendance, self.ensemble, self._earshot, self._meta
        )
        self.state.on_change = self.happenings.change
        self.empty_since: float | None = time.monotonic()
        self._limits = settings.limits
        self._safety = safety
        self._last_addressed: dict[str, str] = {}  # player -> NPC

    @property
    def members(self) -> int:
        """Sessions that are in the scene."""
        return len(self.attendance.members)

    # After a restart

    @staticmethod
    def seats(book: Book) -> list[str]:
        """Ids of the sessions that are in a scene, according to its book."""
        return book.names("seat/")

    def restore(self, sessions: Mapping[str, "Session"]) -> None:
        """Go on where another process has ended, with those of its sessions that are not over."""
        remains = Remains(self.ledger, self.stream, sessions)
        self.stream.restore(remains.ended)
        self.attendance.states.update(remains.states)
        self._last_addressed.update(self.ledger.last_addressed())
        if (story := self.ledger.told_story()) is not None:
            self.plot.story.restore(story)
        for name, seat in remains.seats.items():
            if name in sessions:
                self._seat(sessions[name], seat.role, seat.interest)
                sessions[name].sit(self)
                self.plot.enter(seat.player)
            else:
                self.ledger.stand_up(name)
        for seat in remains.seats.values():
            self.attendance.announce(seat.player, seat.name, seat.role)
        self.state.settle()
        if self.attendance.members:
            self.empty_since = None
        for npc in remains.npcs:
            if npc in self.pack.npcs:
                lines, finished, lost = remains.of(npc)
                self.ensemble.floor(npc).restore(lines, finished, lost)

    def has(self, session: "Session") -> bool:
        """Whether a session is in the scene."""
        return session in self.attendance.members

    def keep(self) -> None:
        """Write down what is kept as a whole: feelings, and the story."""
        for npc, floor in self.floors.items():
            self.ledger.feel(npc, floor.dialogue.feelings)
        self.ledger.tell_story(self.plot.story)
        self.state.keep()

    # Presence

    def join(self, session: "Session", command: SceneJoin, re: int | None) -> Encoded:
        """Let a session in, or show it the scene again if it is in already: `scene.joined`."""
        if session not in self.attendance.members:
            if len(self.attendance.members) >= self._limits.players_per_scene:
                raise Refusal(Code.BUSY, "this scene is full", retry_ms=5000)
            role, interest = command.role or "player", tuple(command.interest or ()) or None
            self.attendance.members[session] = role
            self.empty_since = None
            self.ensemble.look()
            if session.player not in self.attendance.states:
                self.state.enter(session.player)
            self.attendance.announce(session.player, session.name, role)
            self.ensemble.attend()
            self._seat(session, role, interest)
            self.ledger.sit(session, role, interest)
            self._show_live_turns(session)
            self.plot.enter(session.player)
            if command.greet:
                self._greet(session)
        return self._view(session, "scene.joined", re)

    def leave(self, session: "Session") -> None:
        """Let a session go. Its lines are dropped; turns that nobody hears any more stop."""
        role = self.attendance.members.pop(session)
        session.outbox.unfollow(self.stream)
        self.ledger.stand_up(session.id)
        self.attendance.announce(session.player, session.name, role)
        if session.player not in self.attendance.states:
            self._last_addressed.pop(session.player, None)
            self.ledger.addressed(session.player, None)
            self.plot.story.leave(session.player)
            self.state.leave(session.player)
        for floor in self.floors.values():
            floor.withdraw(session, self.attendance.members)
        self.ensemble.attend()
        if not self.attendance.members:
            self.empty_since = time.monotonic()

    def notice(self, session: "Session") -> None:
        """A member has lost its connection, or is back: lines of it that waited are answered."""
        role = self.attendance.members[session]
        self.attendance.announce(session.player, session.name, role)
        self.ensemble.attend()
        for floor in self.floors.values():
            floor.go_on()

    # A new version of the pack

    def adopt(self, pack: OpenScene) -> None:
        """Follow a new version: open turns end on the old one, lines that wait get the new one.

        Lines that wait for an NPC who is gone get a turn each that fails.
        """
        before, self.pack = self.pack, pack
        self.ensemble.adopt(pack)
        self.happenings.adopt(pack)
        self.plot.adopt(pack)
        self.state.adopt(pack)
        if (before.title, before.meta) != (pack.title, pack.meta):
            self._meta.changed()
        if [*map(_shown, before.npcs.values())] != [*map(_shown, pack.npcs.values())]:
            for session in self.attendance.members:
                session.outbox.show(self.stream)

    def forget(self, player: str, npc: str | None) -> None:
        """Let all NPCs, or the one with an id, forget what a player has said and what they think of
        the player; all of them, and the player's own quests begin anew.
        """
        self.ledger.begin_unit()
        self.ensemble.forget(player, npc)
        if npc is None:
            self.plot.story.forget(player)

    def close(self) -> None:
        """The server goes: all turns end, and nothing new begins."""
        self.state.keep()
        for floor in self.floors.values():
            floor.close()

    def halt(self) -> None:
        """No more words of a model: all turns end."""
        for floor in self.floors.values():
            floor.halt()

    def abandon(self) -> None:
        """End turns whose end the engine did not confirm."""
        for floor in self.floors.values():
            floor.abandon()

    def freeze(self) -> None:
        """The store does not answer: stand still until it does."""
        for floor in self.floors.values():
            floor.freeze()
        notice = encode("notice", Notice("degraded", {"reason": "store"}), st=self.stream.id)
        for session in self.attendance.members:
            session.outbox.tell(notice, at_once=True)

    def fence(self) -> list["Session"]:
        """Another node owns this scene: nothing is said or written here any more. Returns the
        sessions that were in it."""
        self.state.close()
        for floor in self.floors.values():
            floor.fence()
        members = list(self.attendance.members)
        for session in members:
            session.outbox.unfollow(self.stream)
        self.attendance.members.clear()
        return members

    # What players do

    def say(self, session: "Session", say: Say, received: float) -> SayAccepted:
        """A player's line; raises `Refusal` if it is not accepted. See `Floor.offer`."""
        self.attendance.require_player(session)
        text = self._taken(say.text)
        prefill = self._taken(say.prefill, "prefill") if say.prefill else ""
        listeners = self._listeners(session, say)
        npc = self._addressee(session, say, text)
        msg = new_id("m")
        streams, audience = self._circle(listeners)
        scene = None if listeners is None else self.stream.id
        near = scene is not None and not say.to
        said = PlayerSaid(msg, session.player, text, npc, scene, near)

        def announce() -> None:
            for stream in streams:
                stream.append("player.said", said)

        if npc is None:  # among players
            announce()
            return SayAccepted(msg, 0)
        floor = self.ensemble.floor(npc)
        floor.check(text)
        self._safety.note_steering(text)
        line = Line(
            msg, "player", session.player, session.name, npc, text, now_ms(), audience=audience
        )
        position = floor.offer(Cue(line, session, received, streams, listeners, prefill), announce)
        if self._last_addressed.get(session.player) != npc:
            self._last_addressed[session.player] = npc
            self.ledger.addressed(session.player, npc)
        return SayAccepted(msg, position)

    def observe(self, session: "Session", observe: Observe) -> None:
        """A line the game spoke: the NPC, or all of them, have heard it."""
        self.attendance.require_player(session)
        text = self._taken(observe.text)
        if observe.npc:
            floors = [self.ensemble.floor(observe.npc)]
        else:  # one at least, who can tell whether the line is too long
            floors = list(self.floors.values()) or [self.ensemble.floor(next(iter(self.pack.npcs)))]
        who = observe.who or session.player
        known = self.pack.npcs.get(who)
        name = known.name if known else self.attendance.name_of(who)
        line = Line(new_id("m"), "observed", who, name, observe.npc or None, text, now_ms())
        for floor in floors:
            floor.check(text)
        if observe.npc:
            floors[0].dialogue.hear(line)
        else:
            self.ensemble.hear(line)

    def interrupt(self, session: "Session", command: Interrupt) -> None:
        """Stop an NPC; raises `no_turn` if it is not speaking to this player."""
        self.attendance.require_player(session)
        if command.all:
            raise Refusal(Code.FORBIDDEN, "only an administrator may silence everybody")
        if command.npc:
            floors = [self.ensemble.floor(command.npc)]
        elif command.turn:
            floors = list(self.floors.values())
        else:
            raise Refusal(Code.BAD_FIELD, "npc.interrupt needs turn or npc")
        for floor in floors:
            answer = floor.answer
            if (
                answer is not None
                and answer.ending is None
                and (not command.turn or answer.turn.id == command.turn)
                and (answer.cue.listeners is None or session in answer.cue.listeners)
            ):
                heard = 0 if command.heard_i is None else command.heard_i + 1
                floor.interrupt(command.mode or "truncate", heard)
                return
        raise Refusal(Code.NO_TURN, "there is no such turn to interrupt")

    def heard(self, session: "Session", command: TurnHeard) -> None:
        """A client has played a turn so far; raises `no_turn` for one that is not known."""
        heard = 0 if command.heard_i is None else command.heard_i + 1
        if not any(
            floor.heard(command.turn, session.player, heard) for floor in self.floors.values()
        ):
            raise Refusal(Code.NO_TURN, "there is no such finished turn")

    def tell(self, session: "Session", told: ContextSet) -> None:
        """A game tells of its player; see `Plot.tell`."""
        self.attendance.require_player(session)
        redact = self._safety.redact_data
        items = [ContextItem(item.k, redact(item.v, self.pack.id)) for item in told.items]
        self.plot.tell(session, msgspec.structs.replace(told, items=items))

    def settle(self, session: "Session", result: ActionResult) -> None:
        """A game says what became of an action; see `Plot.settle`."""
        self.attendance.require_player(session)
        data = self._safety.redact_data(result.data, self.pack.id)
        self.plot.settle(session.player, result.action, result.ok, data)

    def history(self, session: "Session", command: HistoryGet) -> History:
        """A page of what was said to one NPC, or to all of them."""
        most = self._limits.history_items
        limit = most if command.limit is None else command.limit
        if limit > most:
            raise Refusal(Code.BAD_FIELD, "limit is too high", limit=most, actual=limit)
        floors = [self.ensemble.floor(command.npc)] if command.npc else list(self.floors.values())
        dialogues = [floor.dialogue for floor in floors]
        return read_page(dialogues, session.player, command.before, limit)

    def live_turns(self, session: "Session", *, private: bool = False) -> list[Turn]:
        """The public turns being spoken; `private`: the whispered ones that a session hears."""
        answers = [floor.answer for floor in self.floors.values() if floor.answer is not None]
        if private:
            return [a.turn for a in answers if a.cue.listeners and session in a.cue.listeners]
        return [a.turn for a in answers if a.cue.listeners is None]

    def knows_turn(self, turn: str) -> bool:
        """Whether a turn is, or lately was, spoken here."""
        return any(floor.knows(turn) for floor in self.floors.values())

    def _taken(self, text: str, field: str = "text") -> str:
        """A line as it may be stored, shown and told to a model."""
        return self._safety.redact(clean_line(text, self._limits.say_chars, field), self.pack.id)

    # Who is meant

    def _listeners(self, session: "Session", say: Say) -> frozenset["Session"] | None:
        """The sessions that hear a line; None: the whole scene."""
        if not say.to:
            return self._earshot.listeners(session)
        players = {name for name in say.to if name not in self.pack.npcs}
        for player in sorted(players):
            if player not in self.attendance.states:
                raise Refusal(Code.BAD_FIELD, f"to: {player} is not here")
        players.add(session.player)
        return frozenset(member for member in self.attendance.members if member.player in players)

    def _circle(
        self, listeners: frozenset["Session"] | None
    ) -> tuple[tuple[Stream, ...], frozenset[str] | None]:
        """Where a line goes that these sessions hear, and its audience."""
        if listeners is None:
            return (self.stream,), None
        players = frozenset(listener.player for listener in listeners)
        return tuple(listener.private for listener in listeners), players

    def _addressee(self, session: "Session", say: Say, text: str) -> str | None:
        """The NPC who is to answer; None if players are among themselves."""
        if say.npc:
            npc = self.ensemble.floor(say.npc).npc
            self._earshot.require(session, npc)
            return npc
        if say.to:
            named = next((name for name in say.to if name in self.pack.npcs), None)
            if named is not None:
                self._earshot.require(session, named)
            return named
        if self._earshot.matters(session):
            return self._earshot.addressee(session, self.pack, text)
        return choose(self.pack, text, self._last_addressed.get(session.player))

    # What is shown

    def _seat(self, session: "Session", role: Role, interest: tuple[str, ...] | None) -> None:
        """Let a session follow what happens here."""
        self.attendance.members[session] = role
        live, wanted = partial(self.live_turns, session), interest and frozenset(interest)
        snapshot = partial(self._snapshot, session)
        watch = self.state.watch(session.player)
        session.outbox.follow(self.stream, snapshot, live, wanted or None, watch)

    def _greet(self, session: "Session") -> None:
        """The first NPC near by that has a greeting speaks it."""
        near = self._earshot.near(session, self.pack)
        npc = next((npc.id for npc in near.values() if npc.greets), None)
        if npc is not None:
            floor, player, name = self.ensemble.floor(npc), session.player, session.name
            listeners = self._earshot.listeners(session)
            streams, audience = self._circle(listeners)
            line = Line(new_id("m"), "player", player, name, npc, "", now_ms(), audience=audience)
            greeting = floor.dialogue.greeting
            cue = Cue(line, session, time.monotonic(), streams, listeners, greeting=greeting)
            floor.greet(cue)

    def _show_live_turns(self, session: "Session") -> None:
        for turn in self.live_turns(session):
            session.outbox.listen(turn, turn.published)

    def _describe(self, rev: int) -> dict[str, object]:
        return {**self.plot.story.world(), "title": self.pack.title, "rev": rev}

    def _snapshot(self, session: "Session", gap: Gap | None) -> Encoded:
        """What stands in for events that a session has missed, or shows what has changed."""
        self._show_live_turns(session)
        return self._view(session, "scene.snapshot", None, gap)

    def _view(self, session: "Session", t: str, re: int | None, gap: Gap | None = None) -> Encoded:
        return view_scene(
            t,
            self.stream,
            self.pack,
            self.attendance,
            self.floors,
            session.outbox,
            meta=self._describe(self._meta.rev),
            quests=self.plot.quests(session.player),
            room=self._limits.out_bytes,
            gap=gap,
            re=re,
        )


def _shown(npc: Npc) -> tuple[str, str, str, bool]:
    """What clients are told of an NPC."""
    return npc.id, npc.name, npc.role, npc.quest_giver
