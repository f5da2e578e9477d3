"""One running scene: the single writer of its events, its presence and its NPCs' turns.

Methods are synchronous: the event loop runs one of them at a time, to its end.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from engine.api import Ticket
from engine.errors import EngineError
from gameserver.answer import Cue
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
    RaiseEvent,
    Say,
    SceneJoin,
    TurnHeard,
)
from gameserver.floor import Floor
from gameserver.ledger import Ledger
from gameserver.messages import (
    Change,
    Gap,
    History,
    Notice,
    NpcRelation,
    PlayerSaid,
    Presence,
    PresenceChange,
    PresenceMeta,
    Role,
    SayAccepted,
    WorldEvent,
)
from gameserver.newsroom import Newsroom
from gameserver.overheard import Overheard, Witnessed
from gameserver.plot import Plot
from gameserver.protocol import Code, Encoded, Refusal, encode, new_id, now_ms
from gameserver.refusals import refusal_of
from gameserver.remains import Remains
from gameserver.safety import Safety
from gameserver.scene_view import view_scene
from gameserver.settings import Settings
from gameserver.stores.journal import Book
from gameserver.streams import Latest, Stream
from gameserver.tally import Tally
from gameserver.turn import Turn
from gameserver.wording import clean_line
from npc.cast import OpenScene
from npc.dialogue import Line
from npc.director import choose
from npc.relations import AXES
from npc.roster import Npc
from scenes.document import Scalar
from scenes.reactions import Happening, same

if TYPE_CHECKING:
    from gameserver.session import Session


class SceneActor:
    """A scene pack being played: who is there, what happened, who speaks.

    Attributes:
        stream: its public events; the stream's id is the scene's.
        pack: what is played, in the version that new turns follow.
        floors: the NPCs that were needed so far.
        plot: its quests, and what its NPCs do.
        ledger: what it writes down of itself.
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
        *,
        cancel: Callable[[Ticket], None],
        on_prompt: Callable[[str, Ticket], None] | None,
    ) -> None:
        self.ledger = Ledger(book, settings.store.checkpoint_ms)
        self.stream = Stream(stream_id, book.epoch, settings.flow, book)
        self.pack = pack
        self._safety = safety
        self.floors: dict[str, Floor] = {}
        self._members: dict[Session, Role] = {}
        self.plot = Plot(self.stream, pack, self._members, self._relation, self._felt)
        self._backstage = Backstage(
            scene=self.stream,
            plot=self.plot,
            ledger=self.ledger,
            settings=settings,
            tally=tally,
            safety=safety,
            budgets=budgets,
            account=pack.id,
            cancel=cancel,
            on_prompt=on_prompt,
        )
        self._overheard = Overheard(settings.replies.transcript_lines, self.ledger.overheard())
        self._witnessed = Witnessed()
        self._newsroom = Newsroom(self.stream)
        self._meta = Latest("scene.meta", self.stream, self._describe)
        self.empty_since: float | None = time.monotonic()
        self._limits = settings.limits
        self._states: dict[str, Literal["present", "away"]] = {}  # of players, as announced
        self._last_addressed: dict[str, str] = {}  # player -> NPC

    @property
    def members(self) -> int:
        """Sessions that are in the scene."""
        return len(self._members)

    def players(self) -> list[tuple[str, str, str]]:
        """Everybody in the scene: id, name, and whether "present" or "away"."""
        names = {member.player: member.name for member in self._members}
        return [(player, name, self._states[player]) for player, name in names.items()]

    # After a restart

    @staticmethod
    def seats(book: Book) -> list[str]:
        """Ids of the sessions that are in a scene, according to its book."""
        return book.names("seat/")

    def restore(self, sessions: Mapping[str, "Session"]) -> None:
        """Go on where another process has ended, with those of its sessions that are not over."""
        remains = Remains(self.ledger, self.stream, sessions)
        self.stream.restore(remains.ended)
        self._states.update(remains.states)
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
            self._announce(seat.player, seat.name, seat.role)
        if self._members:
            self.empty_since = None
        for npc in remains.npcs:
            if npc in self.pack.npcs:
                lines, finished, lost = remains.of(npc)
                self._floor(npc).restore(lines, finished, lost)

    def has(self, session: "Session") -> bool:
        """Whether a session is in the scene."""
        return session in self._members

    def keep(self) -> None:
        """Write down what is kept as a whole: feelings, and the story."""
        for npc, floor in self.floors.items():
            self.ledger.feel(npc, floor.dialogue.feelings)
        self.ledger.tell_story(self.plot.story)

    # Presence

    def join(self, session: "Session", command: SceneJoin, re: int | None) -> Encoded:
        """Let a session in, or show it the scene again if it is in already: `scene.joined`."""
        if session not in self._members:
            if len(self._members) >= self._limits.players_per_scene:
                raise Refusal(Code.BUSY, "this scene is full", retry_ms=5000)
            role, interest = command.role or "player", tuple(command.interest or ()) or None
            self._members[session] = role
            self.empty_since = None
            self.look()
            self._announce_presence(session, role)
            self._attend()
            self._seat(session, role, interest)
            self.ledger.sit(session, role, interest)
            self._show_live_turns(session)
            self.plot.enter(session.player)
            if command.greet:
                self._greet(session)
        return self._view(session, "scene.joined", re)

    def leave(self, session: "Session") -> None:
        """Let a session go. Its lines are dropped; turns that nobody hears any more stop."""
        role = self._members.pop(session)
        session.outbox.unfollow(self.stream)
        self.ledger.stand_up(session.id)
        self._announce_presence(session, role)
        if not self._is_present(session.player):
            self._last_addressed.pop(session.player, None)
            self.ledger.addressed(session.player, None)
            self.plot.story.leave(session.player)
        for floor in self.floors.values():
            floor.withdraw(session, self._members)
        self._attend()
        if not self._members:
            self.empty_since = time.monotonic()

    def notice(self, session: "Session") -> None:
        """A member has lost its connection, or is back: lines of it that waited are answered."""
        self._announce_presence(session, self._members[session])
        self._attend()
        for floor in self.floors.values():
            floor.go_on()

    # A new version of the pack

    def adopt(self, pack: OpenScene) -> None:
        """Follow a new version: open turns end on the old one, lines that wait get the new one.

        Lines that wait for an NPC who is gone get a turn each that fails.
        """
        before, self.pack = self.pack, pack
        for npc, floor in self.floors.items():
            floor.gone = npc not in pack.npcs
            if not floor.gone:
                pack.recast(floor.dialogue)
        self.forget_gone()
        self.plot.adopt(pack)
        if (before.title, before.meta) != (pack.title, pack.meta):
            self._meta.changed()
        if [*map(_shown, before.npcs.values())] != [*map(_shown, pack.npcs.values())]:
            for session in self._members:
                session.outbox.show(self.stream)

    def forget_gone(self) -> None:
        """Let go of NPCs that are no longer in the scene and have ended their last turn."""
        for npc in [npc for npc, floor in self.floors.items() if floor.gone and floor.quiet]:
            del self.floors[npc]

    def forget(self, player: str, npc: str | None) -> None:
        """Let all NPCs, or the one with an id, forget what a player has said and what they think of
        the player; all of them, and the player's own quests begin anew.
        """
        self.ledger.begin_unit()
        for name in self.ledger.remembered():  # who was not needed since the scene was opened
            if name in self.pack.npcs:
                self._floor(name)
        if npc is None:
            self._overheard.forget(player)
            self._witnessed.forget(player)
            self.plot.story.forget(player)
        for floor in self.floors.values():
            if npc in (None, floor.npc):
                floor.dialogue.forget(player)

    def close(self) -> None:
        """The server goes: all turns end, and nothing new begins."""
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
        for session in self._members:
            session.outbox.tell(notice, at_once=True)

    def fence(self) -> list["Session"]:
        """Another node owns this scene: nothing is said or written here any more. Returns the
        sessions that were in it."""
        for floor in self.floors.values():
            floor.fence()
        members = list(self._members)
        for session in members:
            session.outbox.unfollow(self.stream)
        self._members.clear()
        return members

    # What players do

    def say(self, session: "Session", say: Say, received: float) -> SayAccepted:
        """A player's line; raises `Refusal` if it is not accepted. See `Floor.offer`."""
        self._require_player(session)
        text = self._taken(say.text)
        prefill = self._taken(say.prefill, "prefill") if say.prefill else ""
        listeners = self._listeners(session, say)
        npc = self._addressee(session, say, text)
        msg = new_id("m")
        streams: tuple[Stream, ...] = (self.stream,)
        audience = scene = None
        if listeners is not None:
            streams = tuple(listener.private for listener in listeners)
            audience = frozenset(listener.player for listener in listeners)
            scene = self.stream.id
        said = PlayerSaid(msg, session.player, text, npc, scene)

        def announce() -> None:
            for stream in streams:
                stream.append("player.said", said)

        if npc is None:  # a whisper among players
            announce()
            return SayAccepted(msg, 0)
        floor = self._floor(npc)
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
        self._require_player(session)
        text = self._taken(observe.text)
        if observe.npc:
            floors = [self._floor(observe.npc)]
        else:  # one at least, who can tell whether the line is too long
            floors = list(self.floors.values()) or [self._floor(next(iter(self.pack.npcs)))]
        who = observe.who or session.player
        known = self.pack.npcs.get(who)
        name = known.name if known else self._name_of(who)
        line = Line(new_id("m"), "observed", who, name, observe.npc or None, text, now_ms())
        for floor in floors:
            floor.check(text)
        if not observe.npc:
            self._overheard.hear(line)
        for floor in floors:
            floor.dialogue.hear(line)

    def interrupt(self, session: "Session", command: Interrupt) -> None:
        """Stop an NPC; raises `no_turn` if it is not speaking to this player."""
        self._require_player(session)
        if command.all:
            raise Refusal(Code.FORBIDDEN, "only an administrator may silence everybody")
        if command.npc:
            floors = [self._floor(command.npc)]
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

    def raise_event(self, session: "Session", event: RaiseEvent) -> None:
        """A world event that a player's game may raise if the scene file lists it."""
        self._require_player(session)
        if event.name not in self.pack.events and not session.any_event:
            raise Refusal(Code.FORBIDDEN, f"this scene has no event {event.name!r} for players")
        limit, actual = self._limits.event_bytes, len(msgspec.json.encode(event.data))
        if actual > limit:
            raise Refusal(Code.TOO_LARGE, "data is too large", limit=limit, actual=actual)
        data = self._safety.redact_data(event.data, self.pack.id)
        body = WorldEvent(event.name, data, "player", state=False)
        private = event.scope == "player"
        if private:
            session.private.append("world.event", body)
        elif event.scope in (None, "", "scene", "npc"):
            # What happens to an NPC happens in front of everybody.
            self.stream.append("world.event", body)
        else:
            raise Refusal(Code.FORBIDDEN, f"there is no scope {event.scope!r} for events")
        details = data if isinstance(data, dict) else {}
        what = Happening("event", event.name, details)
        self.happened(what, session.player, private=private)
        self.plot.happened(what, session.player)
        if not private:
            self._spread(what)

    def happen(self, name: str, data: Any, src: str = "mqtt") -> None:
        """Something happens in the world that no player has caused; see `Bridge`.

        Args:
            data: as JSON, checked for size and shape.
            src: who says so.
        """
        data = self._safety.redact_data(data, self.pack.id)
        self.stream.append("world.event", WorldEvent(name, data, src, state=False))
        what = Happening("event", name, data if isinstance(data, dict) else {})
        self.happened(what, None)
        self.plot.occurred(what)
        self._spread(what)

    def become(self, name: str, value: Scalar | None, src: str = "mqtt") -> None:
        """A fact of the scene file's `meta` is another now; None: as it is written there. It is no
        happening: nobody feels or says anything. What is so already, is no news.

        Raises:
            Refusal: `forbidden`: the scene file has no such fact.
        """
        if name not in self.pack.meta:
            raise Refusal(Code.FORBIDDEN, f"the meta of {self.pack.id} has no {name!r}")
        value = self._safety.redact_data(value, self.pack.id)
        facts, before = self.plot.story.facts, self.plot.story.world()[name]
        if value is None:
            facts.pop(name, None)
        else:
            facts[name] = value
        now = self.plot.story.world()[name]
        if not same(before, now):
            self.stream.append("world.event", WorldEvent(name, now, src, state=True))
            self._meta.changed()

    def _spread(self, what: Happening) -> None:
        """Let NPCs know what the scene file says of a happening, and let those speak whom it wakes.

        Nobody is woken for an empty room, nor while the NPC has no words: then it only knows.
        """
        for news, line in self._newsroom.of(self.pack.news, what):
            woken = None
            if any(not member.away for member in self._members) and self._newsroom.wakes(news):
                with contextlib.suppress(Refusal):
                    self._floor(news.wakes).offer(self._newsroom.cue(line), lambda: None)
                    woken = news.wakes
            self._overheard.hear(line)
            for npc, floor in self.floors.items():
                if npc != woken:
                    floor.dialogue.hear(line)

    def tell(self, session: "Session", told: ContextSet) -> None:
        """A game tells of its player; see `Plot.tell`."""
        self._require_player(session)
        redact = self._safety.redact_data
        items = [ContextItem(item.k, redact(item.v, self.pack.id)) for item in told.items]
        self.plot.tell(session, msgspec.structs.replace(told, items=items))

    def settle(self, session: "Session", result: ActionResult) -> None:
        """A game says what became of an action; see `Plot.settle`."""
        self._require_player(session)
        data = self._safety.redact_data(result.data, self.pack.id)
        self.plot.settle(session, msgspec.structs.replace(result, data=data))

    def happened(self, what: Happening, player: str | None, *, private: bool = False) -> None:
        """Let all NPCs feel what they feel about something.

        Args:
            player: who caused it; None for the world.
            private: only this player could see it.
        """
        news = self._witnessed.see(what, player, private=private)
        for floor in self.floors.values():
            news(floor.dialogue.feelings)
        self.look()

    def look(self) -> None:
        """Show what NPCs feel by now, and tell players who mean something else to one than before.
        Call about once a second.
        """
        for floor in self.floors.values():
            floor.look()
            feelings = floor.dialogue.feelings
            for player in feelings.take_moved():
                now = feelings.relations.of(player)
                body = NpcRelation(self.stream.id, floor.npc, now.trust, now.affection, now.fear)
                for member in self._members:
                    if member.player == player:
                        member.private.append("npc.relation", body)

    def history(self, session: "Session", command: HistoryGet) -> History:
        """A page of what was said to one NPC, or to all of them."""
        most = self._limits.history_items
        limit = most if command.limit is None else command.limit
        if limit > most:
            raise Refusal(Code.BAD_FIELD, "limit is too high", limit=most, actual=limit)
        floors = [self._floor(command.npc)] if command.npc else list(self.floors.values())
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

    def _require_player(self, session: "Session") -> None:
        if self._members[session] == "observer":
            raise Refusal(Code.FORBIDDEN, "observers only watch")

    def _floor(self, npc: str) -> Floor:
        """An NPC of the scene, who exists from the moment somebody needs it."""
        if npc not in self.pack.npcs:
            raise Refusal(Code.NO_NPC, f"nobody here is called {npc[:64]!r}")
        if npc not in self.floors:
            try:
                shelf = self.ledger.transcript(npc)
                dialogue = self.pack.dialogue(npc, self.stream.id, shelf)
            except EngineError as error:
                raise refusal_of(error) from error
            dialogue.present = frozenset(self._states)
            self._overheard.tell(dialogue)
            if (felt := self.ledger.felt(npc)) is not None:
                dialogue.feelings.restore(felt)
            else:
                self._witnessed.tell(dialogue.feelings)
            dialogue.sources += self.plot.sources(npc)
            dialogue.feelings.states = partial(self.plot.story.state, npc)
            self.floors[npc] = Floor(dialogue, self._backstage)
        return self.floors[npc]

    def _listeners(self, session: "Session", say: Say) -> frozenset["Session"] | None:
        """The sessions a whisper reaches; None for a line to the whole scene."""
        if not say.to:
            return None
        players = {name for name in say.to if name not in self.pack.npcs}
        for player in sorted(players):
            if not self._is_present(player):
                raise Refusal(Code.BAD_FIELD, f"to: {player} is not here")
        players.add(session.player)
        return frozenset(member for member in self._members if member.player in players)

    def _addressee(self, session: "Session", say: Say, text: str) -> str | None:
        """The NPC who is to answer; None if players whisper among themselves."""
        if say.npc:
            return self._floor(say.npc).npc
        if say.to:
            return next((name for name in say.to if name in self.pack.npcs), None)
        return choose(self.pack, text, self._last_addressed.get(session.player))

    def _relation(self, npc: str, player: str) -> dict[str, float]:
        """What an NPC feels about a player, whether or not it was needed so far."""
        floor = self.floors.get(npc)
        if floor is not None:
            relation = floor.dialogue.feelings.relations.of(player)
        elif npc in self.pack.npcs:
            relation = self.pack.npcs.persona(npc).stranger
        else:
            return {}
        return {axis: float(getattr(relation, axis)) for axis in AXES}

    def _felt(self, what: Happening, player: str | None, private: bool) -> None:
        self.happened(what, player, private=private)

    def _is_present(self, player: str) -> bool:
        return player in self._states

    def _name_of(self, player: str) -> str:
        return next((member.name for member in self._members if member.player == player), player)

    # What is shown

    def _announce_presence(self, session: "Session", role: Role) -> None:
        """Tell of a player, if there is news: several sessions of one player count as one."""
        self._announce(session.player, session.name, role)

    def _announce(self, player: str, name: str, role: Role) -> None:
        sessions = [member for member in self._members if member.player == player]
        known = self._states.pop(player, None)
        if sessions:
            self._states[player] = "away" if all(s.away for s in sessions) else "present"
        what: Change
        if self._states.get(player) == known:
            return
        if not sessions:
            what = "leave"
        elif known is None:
            what = "join"
        else:
            what = "away" if known == "present" else "back"
        change = PresenceChange(player, what, PresenceMeta(name, role))
        self.stream.append("presence", Presence([change]))
        self.ledger.announced(player, self._states.get(player))

    def _seat(self, session: "Session", role: Role, interest: tuple[str, ...] | None) -> None:
        """Let a session follow what happens here."""
        self._members[session] = role
        live, wanted = partial(self.live_turns, session), interest and frozenset(interest)
        snapshot = partial(self._snapshot, session)
        session.outbox.follow(self.stream, snapshot, live, wanted or None)

    def _attend(self) -> None:
        connected = {member for member in self._members if not member.away}
        present = frozenset(self._states)
        for floor in self.floors.values():
            floor.dialogue.present = present
            floor.attend(connected)

    def _greet(self, session: "Session") -> None:
        """The first NPC that has a greeting speaks it."""
        npc = next((npc.id for npc in self.pack.npcs.values() if npc.greets), None)
        if npc is not None:
            floor, player, name = self._floor(npc), session.player, session.name
            line = Line(new_id("m"), "player", player, name, npc, "", now_ms())
            greeting = floor.dialogue.greeting
            floor.greet(Cue(line, session, time.monotonic(), (self.stream,), greeting=greeting))

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
            self._members,
            self._states,
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
