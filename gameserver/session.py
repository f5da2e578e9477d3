"""A player's session: which scenes it is in, and its commands, each carried out once.

It outlives the connection, see `sessions`.
"""

import time
from collections.abc import Awaitable, Callable

import msgspec

from gameserver import commands as c
from gameserver.access import Pass
from gameserver.admission import TokenBucket, rate_limited
from gameserver.diary import Diary, Pace
from gameserver.households import UNLIMITED
from gameserver.inbound import Message
from gameserver.messages import Ack, Gap, HeartbeatAck, Notice
from gameserver.outbox import Outbox
from gameserver.protocol import PRIVATE, Code, Encoded, Refusal, encode, now_ms
from gameserver.receipts import Receipts
from gameserver.scene_actor import SceneActor
from gameserver.settings import Settings
from gameserver.stores.store import Elsewhere
from gameserver.streams import Stream
from gameserver.tally import Tally
from gameserver.tenants import player_of
from gameserver.turn import Turn
from gameserver.world import World, no_scene, stream_of

Bind = Callable[["Session", str, str, str | None], Awaitable[None]]
#: Between two looks at a client that acknowledges nothing, having nothing to acknowledge.
_LOOK_S = 1.0
_LAG = "lag"
_PAUSE = "pause"


class Session:
    """One player, from the first `welcome` to the end, on one connection after another.

    Attributes:
        id, player, name: who this is.
        account: the player, and no other tenant's of that name.
        private: its stream `me`.
        diary: what it writes down of itself.
        parted: whether it goes on at another node, and is nothing but a name here.
        outbox: what it has still to be told.
        receipts: what its commands were answered.
        grant: what its credential allows.
        household: with whom it shares an address.
    """

    def __init__(
        self,
        account: str,
        name: str,
        outbox: Outbox,
        world: World,
        settings: Settings,
        says: TokenBucket,
        tally: Tally,
        diary: Diary,
    ) -> None:
        """`says` is the player's, whatever its sessions; what is in the diary, goes on."""
        self.id = diary.id
        self.diary = diary
        self.account = account
        self.player = player_of(account)
        self.name = name
        self.outbox = outbox
        self.grant = Pass("")
        self.household = UNLIMITED
        book = diary.book
        self.private = Stream(PRIVATE, book.epoch, settings.flow, book.loosely())
        self.private.restore({})
        self._world = world
        self._limits = settings.limits
        self._settings = settings
        self._flow = settings.flow
        self._tally = tally
        self.parted = False
        self._scenes: dict[str, SceneActor] = {}
        self.receipts = Receipts(settings.flow.answers, settings.flow.answer_bytes, diary.answers())
        self._says = says
        self._acknowledged: dict[str, int] = {}
        self._acknowledged_at = 0.0
        self._pace = Pace(0.0, False)
        outbox.follow(self.private, self._private_gap, self._whispers)
        if (pace := diary.kept_pace()) is not None:
            self._keep_pace(pace)

    @property
    def away(self) -> bool:
        """Whether it has no connection at the moment."""
        return self.outbox.adrift

    def handle(
        self, message: Message, received: float, wait_s: float
    ) -> tuple[Encoded | None, Refusal | None]:
        """Answer a message, carrying it out unless that was done before.

        Args:
            received: monotonic time of its arrival.
            wait_s: above 0, it came too fast and is refused.

        Returns:
            The answer, and the refusal it tells of if the message was not carried out.
        """

        def carry_out() -> Encoded | None:
            if wait_s:
                raise rate_limited(wait_s, "messages")
            return self._run(message, c.read(message), received)

        body = message.body() if message.id is not None else b""
        return self._answer_once(message.id, body, message.st, carry_out)

    def refuse(
        self, ident: int, body: bytes, failure: Refusal
    ) -> tuple[Encoded | None, Refusal | None]:
        """Answer a message of which no more than its id could be read, the same each time."""

        def refused() -> Encoded:
            raise failure

        return self._answer_once(ident, body, None, refused)

    def _answer_once(
        self,
        ident: int | None,
        body: bytes,
        st: str | None,
        carry_out: Callable[[], Encoded | None],
    ) -> tuple[Encoded | None, Refusal | None]:
        """The answer that a command got before, or else the one it gets now."""
        self.diary.book.journal.begin()
        try:
            known = self.receipts.recall(ident, body) if ident is not None else None
        except Refusal as refusal:
            return refusal.encode(ident, st), refusal
        if known is not None:
            self._tally.count("duplicates")
            actor = self._scenes.get(known.st or "")
            return known.in_epoch(actor.stream.ep) if actor is not None else known, None
        failure = None
        try:
            answer = carry_out()
        except Refusal as refusal:
            failure = refusal
            answer = refusal.encode(ident, st)
        if ident is not None and answer is not None:
            self.receipts.keep(ident, body, answer)
        return answer, failure

    @property
    def scenes(self) -> tuple[str, ...]:
        """Stream ids of the scenes it is in."""
        return tuple(self._scenes)

    async def prepare(self, message: Message, bind: "Bind") -> Elsewhere | None:
        """Have the scene open that it is about to join, if it may: if not, `handle` refuses.
        Returns the node that has it, if that is another one.

        Args:
            bind: see `Sessions.bind`: nobody is let into a scene with a session that goes on at
                another node.
        """
        try:
            wanted = c.read(message)
        except Refusal:
            return None
        assert isinstance(wanted, c.SceneJoin)
        if not self._world.tenants.admit(self.grant, wanted.scene):
            return None
        stream = stream_of(wanted.scene, wanted.instance)
        if stream in self._scenes or len(self._scenes) >= self._limits.scenes_per_session:
            return None
        elsewhere = await self._world.open(wanted.scene, wanted.instance)
        if stream in self._world.actors and not self._scenes:
            await bind(self, stream, wanted.scene, wanted.instance)
        return elsewhere

    def part(self) -> None:
        """It goes on at another node: its seats here are free."""
        self.parted = True
        for actor in self._scenes.values():
            if actor.has(self):
                actor.leave(self)
        self._scenes.clear()
        self.outbox.close()

    def check_lag(self, now: float) -> float:
        """Park a client that used to acknowledge and has stopped to. Returns when to look again.

        Args:
            now: monotonic seconds, as is what it returns.
        """
        patience = self._flow.park_s
        if not self._acknowledged:
            return now + patience
        if now - self._acknowledged_at <= patience:
            return self._acknowledged_at + patience
        if not self.outbox.unread(self._acknowledged):
            return now + min(patience, _LOOK_S)  # something to read may come at any time
        self.outbox.park(_LAG)
        return now + patience

    def lose(self) -> None:
        """The connection is gone; the seats in all scenes are kept."""
        journal = self.diary.book.journal
        self._move_to(Outbox(None, self._settings, self._tally, journal))

    def sit(self, actor: SceneActor) -> None:
        """It has a seat in a scene, which an earlier process knew of."""
        self._scenes[actor.stream.id] = actor

    def take_up(self, outbox: Outbox) -> None:
        """Go on, on another connection; `recover` then sends what was missed."""
        self.outbox.unpark(_LAG)  # a new connection has acknowledged nothing yet
        self._acknowledged.clear()
        self._move_to(outbox)

    def recover(self, resume: c.Resume) -> None:
        """Send what the client has missed, before anything else that happens from now on."""
        # `me` begins with the session: who has no cursor in it has not got anything of it.
        cursors = {PRIVATE: 0, **{cursor.st: cursor.s for cursor in resume.cursors or ()}}
        chunks = {cursor.turn: cursor.next_i for cursor in resume.turns or ()}
        states = {cursor.st: (cursor.rev, cursor.ep) for cursor in resume.cursors or ()}
        self.outbox.recover(cursors, chunks, states)

    def end(self) -> None:
        """The session is over: leave everything. What is queued for the client still goes out."""
        for actor in self._scenes.values():
            actor.leave(self)
        self._scenes.clear()
        self.outbox.close()

    def _run(self, message: Message, command: c.Command, received: float) -> Encoded | None:
        """Carry out a command. Returns its answer, if it has one."""
        if self._world.draining and isinstance(command, (c.Say, c.SceneJoin)):
            raise Refusal(Code.DRAINING, "this server is going away", retry_ms=1000)
        match command:
            case c.SceneJoin():
                return self._join(command, message.id)
            case c.SceneLeave():
                return self._leave(message, command)
            case c.Say():
                actor = self._scene(message)
                wait = self._says.take() or self.household.say()
                if wait:
                    raise rate_limited(wait, "lines")
                return _reply(message, "say.accepted", actor.say(self, command, received), actor)
            case c.Interrupt():
                actor = self._scene(message, turn=command.turn)
                actor.interrupt(self, command)
            case c.TurnHeard():
                actor = self._scene(message, turn=command.turn)
                actor.heard(self, command)
            case c.Observe():
                actor = self._scene(message)
                actor.observe(self, command)
            case c.RaiseEvent():
                actor = self._scene(message)
                actor.happenings.raise_event(self, command)
            case c.HistoryGet():
                actor = self._scene(message, command.scene)
                return _reply(message, "history", actor.history(self, command), actor)
            case c.Heartbeat():
                return _reply(message, "heartbeat.ack", self._heartbeat(command))
            case c.FlowSet():
                return _reply(message, "ack", self._set_flow(command))
            case c.ContextSet():
                actor = self._scene(message)
                actor.tell(self, command)
            case c.StateSet():
                actor = self._scene(message)
                actor.state.set(self, command)
                if message.id is None:
                    return None
            case c.ActionResult():
                actor = self._scene(message, turn=command.turn)
                actor.settle(self, command)
            case c.Identify() | c.AuthRefresh() | c.Bye():
                raise AssertionError("the connection answers these")
        return _reply(message, "ack", Ack(), actor)

    def _join(self, command: c.SceneJoin, re: int | None) -> Encoded:
        if not self.grant.may_enter(command.scene):
            raise Refusal(Code.FORBIDDEN, f"your token is not for {command.scene}")
        if not self._world.tenants.admit(self.grant, command.scene):
            raise no_scene(command.scene)
        stream = stream_of(command.scene, command.instance)
        limit = self._limits.scenes_per_session
        if stream not in self._scenes and len(self._scenes) >= limit:
            raise Refusal(Code.FORBIDDEN, "too many scenes at once", limit=limit, actual=limit + 1)
        try:
            actor = self._world.enter(command.scene, command.instance)
            joined = actor.join(self, command, re)
        except Refusal:
            if stream not in self._scenes:
                self.diary.leave(stream)  # it may have been bound to be there
            raise
        if stream not in self._scenes:
            self.diary.enter(stream, command.scene, command.instance)
        self._scenes[stream] = actor
        return joined

    def _leave(self, message: Message, command: c.SceneLeave) -> Encoded:
        named = command.scene and stream_of(command.scene, command.instance)
        actor = self._scene(message, named)
        actor.leave(self)
        del self._scenes[actor.stream.id]
        self.diary.leave(actor.stream.id)
        self._acknowledged.pop(actor.stream.id, None)
        return _reply(message, "scene.left", Ack(), actor)

    def _scene(
        self, message: Message, named: str | None = None, turn: str | None = None
    ) -> SceneActor:
        """The scene a message is about: `st`, or as named in it, or where the turn is, or the only
        one there is."""
        stream = named if message.st in (None, PRIVATE) else message.st
        if stream is not None:
            actor = self._scenes.get(stream)
            if actor is not None:
                return actor
            if self._world.shows(self.grant, stream):
                raise Refusal(Code.NOT_IN_SCENE, f"you are not in {stream}")
            raise Refusal(Code.NO_SCENE, f"there is no scene {stream!r}")
        if turn is not None:
            for actor in self._scenes.values():
                if actor.knows_turn(turn):
                    return actor
        if len(self._scenes) == 1:
            return next(iter(self._scenes.values()))
        if not self._scenes:
            raise Refusal(Code.NOT_IN_SCENE, "join a scene first")
        if turn is not None:
            raise Refusal(Code.NO_TURN, "there is no such turn")
        raise Refusal(Code.BAD_FIELD, "st is missing: you are in several scenes")

    def _heartbeat(self, command: c.Heartbeat) -> HeartbeatAck:
        for cursor in command.cursors or ():
            if cursor.st == PRIVATE or cursor.st in self._scenes:
                self._acknowledged[cursor.st] = cursor.s
        if command.cursors is not None:
            self._acknowledged_at = time.monotonic()
            self.outbox.unpark(_LAG)
        return HeartbeatAck(command.n or 0, now_ms())

    def _set_flow(self, command: c.FlowSet) -> Ack:
        if command.delta_ms is not None:
            slowest = self._flow.delta_ms_max
            if command.delta_ms > slowest:
                raise Refusal(
                    Code.BAD_FIELD, "delta_ms is too long", limit=slowest, actual=command.delta_ms
                )
        pace = self._pace
        if command.delta_ms is not None:
            asked = command.delta_ms if command.delta_ms > self._flow.delta_ms else 0
            pace = msgspec.structs.replace(pace, delta_s=asked / 1000)
        if command.pause is not None:
            pace = msgspec.structs.replace(pace, paused=command.pause)
        self.diary.pace(pace)
        self._keep_pace(pace)
        return Ack()

    def _keep_pace(self, pace: Pace) -> None:
        before, self._pace = self._pace, pace
        self.outbox.delta_s = pace.delta_s
        if pace.paused != before.paused:
            (self.outbox.park if pace.paused else self.outbox.unpark)(_PAUSE)

    def _move_to(self, outbox: Outbox) -> None:
        self.outbox.hand_over(outbox)
        self.outbox = outbox
        for actor in self._scenes.values():
            actor.notice(self)

    def _whispers(self) -> list[Turn]:
        """Whispered turns being spoken to this session."""
        actors = self._scenes.values()
        return [turn for actor in actors for turn in actor.live_turns(self, private=True)]

    def _private_gap(self, gap: Gap | None) -> Encoded:
        """What stands in for private events that are gone: how many, and what is whispered now."""
        for turn in self._whispers():
            self.outbox.listen(turn, 0, resync=True)
        ep, s = self.private.ep, self.outbox.position(self.private)
        if gap is None:
            return encode("scene.synced", Ack(), st=PRIVATE, s=s, ep=ep)
        data = {"from": gap.first, "to": gap.last}
        return encode("notice", Notice("gap", data), st=PRIVATE, ep=ep)


def _reply(
    message: Message, t: str, payload: msgspec.Struct, actor: SceneActor | None = None
) -> Encoded:
    if actor is None:
        return encode(t, payload, re=message.id)
    return encode(t, payload, st=actor.stream.id, ep=actor.stream.ep, re=message.id)
