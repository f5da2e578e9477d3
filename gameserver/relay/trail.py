"""What a client has got and what it waits for, kept on the way: with it a session can go on at
another node while its client stays connected. Nothing here does I/O.

It is what `docs/sessions.md` asks of a client library to keep.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import msgspec

from gameserver.commands import Cursor, Resume, TurnCursor
from gameserver.protocol import PRIVATE


class _Turn(msgspec.Struct):
    turn: str
    i: int = 0
    n: int = 0


class _Scene(msgspec.Struct):
    turns: list[_Turn] = []


class _Welcome(msgspec.Struct):
    session: str
    resume_token: str
    resumed: bool


class _Error(msgspec.Struct):
    code: str
    fatal: bool = False


class _Told(msgspec.Struct):
    """Of a message to a client, what matters here; the rest of it is not even read."""

    t: str
    st: str | None = None
    s: int | None = None
    re: int | None = None
    d: msgspec.Raw = msgspec.Raw(b"{}")


class _Moved(msgspec.Struct):
    node: str = ""


class _Asked(msgspec.Struct):
    t: str
    id: int | None = None


Frame = str | bytes
_NOT_COMMANDS = frozenset({"identify", "bye"})
#: Fatal errors of a node that is not the one any more; for the client life goes on.
_OF_THE_NODE = frozenset({"moved", "draining"})


class Verdict(Enum):
    """What becomes of a message to a client."""

    PASS = auto()
    KEEP = auto()  # it is for us
    SEND_ON = auto()  # `scene.moved`, for one more scene: the client comes to us for that, too
    LEAVE = auto()  # the session goes on at another node
    OVER = auto()  # the session does not go on


@dataclass(slots=True)
class Trail:
    """See above.

    Attributes:
        session, token: by which the session goes on.
        cursors: the last event, by stream.
        turns: stream, and first chunk that is not there yet, by turn that runs.
        open: commands without an answer, by id.
        beat: a heartbeat without an answer.
        hint: the node where the last `scene.moved` pointed.
        sent_on: whether a command was sent on to the node of the scene that it asks for, and has no
            answer from there yet.
        known: whether the client has been welcomed: from then on, it need not know of others.
        welcomed: whether the owner has, since the last `resume`.
    """

    binary: bool
    session: str
    token: str
    cursors: dict[str, int] = field(default_factory=dict)
    turns: dict[str, tuple[str, int]] = field(default_factory=dict)
    open: dict[int, Frame] = field(default_factory=dict)
    beat: Frame | None = None
    hint: str = ""
    sent_on: bool = False
    known: bool = True
    welcomed: bool = False
    _unasked: set[str] = field(default_factory=set)
    _wish: int | None = None  # the command that was sent on last

    @classmethod
    def of(cls, resume: Resume, *, binary: bool) -> "Trail":
        """That of a client which says itself what it has got."""
        trail = cls(binary, resume.session, resume.token, known=False)
        trail.cursors.update((cursor.st, cursor.s) for cursor in resume.cursors or ())
        # Of what stream a turn is, the client does not say: it does not matter before its end.
        trail.turns.update((turn.turn, ("", turn.next_i)) for turn in resume.turns or ())
        return trail

    @property
    def scenes(self) -> bool:
        """Whether the client is in any scene."""
        return bool(self.cursors.keys() - {PRIVATE})

    def resume(self) -> Resume:
        """The wish to go on, of which the client need not know."""
        self.welcomed = False
        self._unasked = {PRIVATE, *self.cursors}
        return Resume(
            self.session,
            self.token,
            [Cursor(st, s) for st, s in self.cursors.items()],
            [TurnCursor(turn, i) for turn, (_, i) in self.turns.items()],
        )

    def waiting(self) -> list[Frame]:
        """What is to be asked again, in order."""
        return [*self.open.values(), *(() if self.beat is None else (self.beat,))]

    def asked(self, frame: Frame) -> str:
        """The client sends a message. Returns its type, "" if that cannot be read."""
        if isinstance(frame, bytes) is not self.binary:
            return ""
        try:
            message: _Asked = self._decode(frame, _Asked)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return ""  # the owner says so
        if message.id is not None and message.t not in _NOT_COMMANDS:
            self.open[message.id] = frame
        elif message.t == "heartbeat":
            self.beat = frame
        return message.t

    def told(self, frame: bytes) -> Verdict:
        """The owner sends a message. Returns what becomes of it."""
        message = self._decode(frame, _Told)
        t, st, s = message.t, message.st or "", message.s
        match t:
            case "hello" | "reconnect":
                return Verdict.KEEP
            case "welcome":
                return self._welcomed(self._decode(message.d, _Welcome))
            case "error" if message.re is None:
                return self._failed(self._decode(message.d, _Error))
            case "scene.moved":
                return self._moved(self._decode(message.d, _Moved), message.re)
            case "scene.synced" if st in self._unasked:
                self._unasked.discard(st)
                return Verdict.KEEP
        self._follow(t, st, s, message.d)
        if message.re is not None:
            self.open.pop(message.re, None)
            if message.re == self._wish:
                self.sent_on = False
        elif t == "heartbeat.ack":
            self.beat = None
        return Verdict.PASS

    def _welcomed(self, welcome: _Welcome) -> Verdict:
        self.welcomed = True
        if self.known:
            return Verdict.KEEP if welcome.resumed else Verdict.OVER
        self.known = True
        self.session, self.token = welcome.session, welcome.resume_token
        if not welcome.resumed:
            for kept in (self.cursors, self.turns, self.open):
                kept.clear()
        return Verdict.PASS

    def _failed(self, error: _Error) -> Verdict:
        if self.known and not self.welcomed:  # it cannot take the session just now
            return Verdict.LEAVE
        ours = error.fatal and error.code in _OF_THE_NODE
        return Verdict.KEEP if ours else Verdict.PASS

    def _moved(self, moved: _Moved, re: int | None) -> Verdict:
        if re in self.open and self.scenes:
            del self.open[re]
            return Verdict.SEND_ON
        self.hint = moved.node
        if re in self.open:
            self.sent_on, self._wish = True, re
        return Verdict.LEAVE

    def give_up(self) -> int | None:
        """The command that was sent on is not to be asked again; returns its id."""
        wish, self._wish, self.sent_on = self._wish, None, False
        if wish is not None:
            self.open.pop(wish, None)
        return wish

    def _follow(self, t: str, st: str, s: int | None, d: msgspec.Raw) -> None:
        """Move the cursors as the client moves its own."""
        if t in ("scene.joined", "scene.snapshot"):
            if s is None or s < self.cursors.get(st, 0):
                return  # an old answer, told again
            self._unasked.discard(st)
            self.cursors[st] = s
            self.turns = {turn: at for turn, at in self.turns.items() if at[0] != st}
            for turn in self._decode(d, _Scene).turns:
                self.turns[turn.turn] = (st, turn.i + turn.n)
        elif t == "scene.left":
            self.cursors.pop(st, None)
            self.turns = {turn: at for turn, at in self.turns.items() if at[0] != st}
        elif s is not None:
            self.cursors[st] = max(s, self.cursors.get(st, 0))
        if t in ("npc.delta", "npc.turn.sync", "npc.turn.start"):
            turn = self._decode(d, _Turn)
            self.turns[turn.turn] = (st, turn.i + turn.n)
        elif t == "npc.turn.end":
            self.turns.pop(self._decode(d, _Turn).turn, None)

    def _decode(self, frame: Frame | msgspec.Raw, kind: type[Any]) -> Any:
        read: Callable[..., Any] = msgspec.msgpack.decode if self.binary else msgspec.json.decode
        return read(frame, type=kind)
