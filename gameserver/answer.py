"""One answer of an NPC, from what it answers to how it ends."""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.decoding.stops import SentenceEnd
from engine.errors import NoRoom, RemoteUnavailable
from engine.outputs import RequestOutput, Usage
from engine.ticket import Ticket
from gameserver.messages import Status, TurnAction, TurnError, TurnUsage
from gameserver.protocol import Code
from gameserver.safety import Listener
from gameserver.streams import Stream
from gameserver.turn import Turn
from npc.actions.channels import Channels
from npc.dialogue import Line, TurnRequest

if TYPE_CHECKING:
    from gameserver.session import Session


@dataclass(frozen=True, slots=True, eq=False)
class Cue:
    """What an NPC is to answer, or its own greeting.

    Attributes:
        line: what was said.
        session: who said it, or who is greeted.
        received: monotonic time of its arrival.
        streams: where the turn's events go.
        listeners: the sessions that hear a whisper; None: everybody in the scene.
        prefill: words the answer begins with.
        greeting: the words of a greeting, which no model needs to find.
        bark: those of a bark, for want of time for an answer.
    """

    line: Line
    session: "Session"
    received: float
    streams: tuple[Stream, ...]
    listeners: frozenset["Session"] | None = None
    prefill: str = ""
    greeting: str = ""
    bark: str = ""

    @property
    def authored(self) -> str:
        """Words that are not the model's; "" if those are to be found."""
        return self.greeting or self.bark

    @property
    def hearers(self) -> frozenset[str] | None:
        """The players who hear a whisper; None: everybody."""
        if self.listeners is None:
            return None
        return frozenset(session.player for session in self.listeners)

    def reaches(self, player: str) -> bool:
        """Whether a player is among those who hear the answer."""
        return self.hearers is None or player in self.hearers

    def is_heard_by(self, sessions: Collection["Session"]) -> bool:
        """Whether any of these members of the scene hears the answer."""
        if self.listeners is None:
            return bool(sessions)
        return any(session in sessions for session in self.listeners)


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a turn ends before the engine is through with it. `kept` chunks are remembered."""

    status: Status
    reason: str
    kept: int
    err: TurnError | None = None


@dataclass(frozen=True, slots=True)
class Spoken:
    """What is kept of a finished turn, for `turn.heard`.

    Attributes:
        player: whose line it answered.
        hearers: players who heard a whisper; None: everybody.
        chunks: its text.
        final: whether memory does not follow it any more.
    """

    player: str
    hearers: frozenset[str] | None
    chunks: tuple[str, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """A turn that another process was speaking when it ended.

    Attributes:
        turn: with the words that were written down of it.
        cue: what it answers.
        again: whether its line is answered in another turn.
    """

    turn: Turn
    cue: Cue
    again: bool


class Answer:
    """A turn on its way from a cue to its end.

    Attributes:
        cue, turn, request: what is answered, the words, and the order to the NPC.
        ticket: the engine's; None while nothing is submitted.
        channels: takes what the engine says apart.
        acts: what was done so far.
        tokens: that the engine has said so far.
        asked_at, spoke_at: when the engine was first asked, and the first words came; time of the
            event loop, None before.
        hurried: whether somebody else waits for the NPC, so that it may be asked to be brief.
        speech: what the words pass through before anybody hears them; None while nothing is asked.
        opening: words that come before the engine's, not spoken yet.
        mid_space: whether the words spoken so far end with a space that the engine was not shown.
        other_words: whether the words to come are given up, and others are to be found.
        deflected: whether it ended with an authored line.
        usages: the bills of its requests.
        ending: set once it is decided that no more words are added.
        yielding: whether it ends with the sentence.
        sentence: follows the text for that.
    """

    __slots__ = (
        "acts",
        "asked_at",
        "channels",
        "cue",
        "deflected",
        "ending",
        "hurried",
        "mid_space",
        "opening",
        "other_words",
        "request",
        "sentence",
        "speech",
        "spoke_at",
        "ticket",
        "tokens",
        "turn",
        "usages",
        "yielding",
    )

    def __init__(self, cue: Cue, turn: Turn) -> None:
        self.cue = cue
        self.turn = turn
        self.request = TurnRequest(turn.id, cue.line, cue.line.audience, cue.prefill)
        self.ticket: Ticket | None = None
        self.ending: Ending | None = None
        self.yielding = False
        self.sentence = SentenceEnd()
        self.channels = Channels()
        self.speech: Listener | None = None
        self.acts: list[TurnAction] = []
        self.tokens = 0
        self.asked_at: float | None = None
        self.spoke_at: float | None = None
        self.hurried = False
        self.opening = cue.prefill
        self.mid_space = self.other_words = self.deflected = False
        self.usages: list[Usage] = []

    def equip(self, request: TurnRequest, channels: Channels, speech: Listener) -> None:
        """This is asked of the NPC, and its words go through these."""
        self.request, self.channels, self.speech = request, channels, speech

    def begin_again(self, request: TurnRequest, channels: Channels, speech: Listener) -> None:
        """Go on after what was spoken, with other words."""
        said = self.turn.text()
        self.equip(request, channels, speech)
        self.opening, self.other_words = "", False
        self.mid_space = said != said.rstrip()


def natural_ending(answer: Answer, output: RequestOutput) -> Ending:
    """How a turn ends that nobody stopped."""
    n = len(answer.turn.chunks)
    if output.finish == "stop":
        return Ending("completed", "stop", n)
    if output.finish == "length":
        return Ending("truncated", "length", n)
    if output.finish == "cancelled":
        return Ending("interrupted", "engine_stopped", n)
    if isinstance(output.refusal, NoRoom | RemoteUnavailable):
        remote = isinstance(output.refusal, RemoteUnavailable)
        msg = "no model server answers" if remote else "memory is short"
        retry_ms = output.refusal.retry_ms
        return Ending("failed", "engine", n, TurnError(Code.BUSY, msg, retry_ms))
    return Ending("failed", "engine", n, TurnError(Code.INTERNAL, output.error or "engine failure"))


def bill(answer: Answer) -> TurnUsage:
    """Tokens of all requests of a turn, and its times, counted from the arrival of its line."""

    def since(moment: float | None) -> int | None:
        return None if moment is None else max(0, round((moment - answer.cue.received) * 1000))

    first, total = since(answer.turn.first_at), since(time.monotonic())
    assert total is not None
    usages = answer.usages
    if not usages:  # no model was asked
        return TurnUsage(0, 0, 0, total, first, total)
    return TurnUsage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        since(usages[0].scheduled),
        first,
        total,
    )
