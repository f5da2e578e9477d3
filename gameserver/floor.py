"""Who may make one NPC speak: lines in order of arrival, one turn at a time."""

import asyncio
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import structlog

from engine.api import Ticket
from engine.errors import ContextExceeded, EngineError, NoRoom, QueueFull
from engine.outputs import RequestOutput, Usage
from gameserver.answer import Answer, Cue, Ending, Lost, Spoken, bill, natural_ending
from gameserver.budgets import Budgets
from gameserver.ledger import Ledger
from gameserver.messages import (
    Activity,
    Emotion,
    NpcAside,
    NpcState,
    TurnEnd,
    TurnError,
    TurnStart,
)
from gameserver.plot import Plot
from gameserver.protocol import Code, Refusal, encoded_size, new_id, now_ms
from gameserver.safety import Safety
from gameserver.settings import Settings
from gameserver.streams import Latest, Stream
from gameserver.tally import Tally
from gameserver.turn import Turn
from npc.actions.channels import Piece
from npc.actions.offer import Act
from npc.dialogue import Dialogue, Line, TurnRequest
from npc.mood import FAINT
from npc.safety.filter import Passed

if TYPE_CHECKING:
    from gameserver.session import Session

#: Room that `npc.turn.end` needs beside the text.
_OVERHEAD_BYTES = 2048
_SENTENCE_ENDED = re.compile(r"""[.!?…。！？]["'”’)*\]」』]*\s*\Z""")

Mode = Literal["truncate", "cancel", "yield"]

_log = structlog.get_logger("troupe.game")


class Floor:
    """One NPC of a running scene: what it is saying, and the lines that wait for it.

    Attributes:
        answer: the turn being spoken.
        mood: the NPC's, as it shows.
        state: the NPC's `npc.state`.
        account: whose budget its words are on.
        gone: whether a new version of the scene has no such NPC: it ends its turn, and every line
            that waits for it gets a turn that fails.
    """

    def __init__(
        self,
        dialogue: Dialogue,
        scene: Stream,
        settings: Settings,
        tally: Tally,
        safety: Safety,
        plot: Plot,
        budgets: Budgets,
        account: str,
        ledger: Ledger,
        *,
        cancel: Callable[[Ticket], None],
        on_prompt: Callable[[str, Ticket], None] | None,
    ) -> None:
        """
        Args:
            safety: filters what is said.
            plot: knows what may be done.
            budgets: what may be said; the NPC's has the id `account` before its own.
            ledger: what the scene writes down.
            cancel: ends a request.
            on_prompt: is shown each turn's prompt.
        """
        self.dialogue = dialogue
        self.npc = dialogue.persona.id
        self.answer: Answer | None = None
        self.activity: Activity = "idle"
        self.state = Latest("npc.state", scene, self._describe)
        self.gone = False
        self._scene = scene
        self._limits = settings.limits
        self._flow = settings.flow
        self._tally = tally
        self._safety = safety
        self._budgets = budgets
        self.account = f"{account}/{self.npc}"
        self._plot = plot
        self._ledger = ledger
        self._urgent_by_quest = settings.replies.urgent_by_quest
        self._cancel = cancel
        self._on_prompt = on_prompt
        self.mood = dialogue.persona.temper.resting
        self._attention: str | None = None
        self._queue: deque[Cue] = deque()
        self._recollecting: set[str] = set()  # lines that the NPC is still thinking about
        self._orphaned: asyncio.TimerHandle | None = None
        self._finished: OrderedDict[str, Spoken] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Lines that wait."""
        return len(self._queue)

    def offer(self, cue: Cue, announce: Callable[[], None]) -> int:
        """Take a line in, or refuse it before anything has happened.

        Args:
            announce: tells the scene about the line; called once it is accepted, before the turn
                starts.

        Returns:
            How many turns come before its answer.

        Raises:
            Refusal: `busy`, `over_budget`, or what the engine says against it.
        """
        self._check_share(cue)
        self._budgets.check(self.account, cue.session.player)
        recollected = partial(self._recollected, cue.line.id)
        if not self.dialogue.prepare(cue.line, recollected):
            self._recollecting.add(cue.line.id)
        if self.answer is not None or self._recollecting:
            self._budgets.turn(self.account, cue.session.player)
            announce()
            self._ledger.accept(self.npc, cue)
            self._queue.append(cue)
            before = sum(not waiting.session.away for waiting in self._queue)
            return before if self.answer is not None else before - 1
        answer = self._prepare(cue)
        self._begin(answer)
        self._budgets.turn(self.account, cue.session.player)
        announce()
        self._ledger.accept(self.npc, cue)
        self._open(answer)
        return 0

    def restore(
        self, waiting: Sequence[Cue], finished: Mapping[str, Spoken], lost: Lost | None
    ) -> None:
        """Go on where another process has ended.

        Args:
            waiting: lines that wait, in order.
            finished: turns that had ended.
            lost: the turn that was being spoken. It ends with what is known of it.
        """
        self._finished.update(finished)
        self._queue.extend(waiting)
        if lost is None:
            return
        answer = self._prepare(lost.cue)
        answer.request = replace(answer.request, turn=lost.turn.id)
        self.answer, answer.turn = answer, lost.turn
        self._close(answer, Ending("abandoned", "owner_lost", len(lost.turn.chunks)))
        if lost.again:
            self._ledger.accept(self.npc, lost.cue)
            self._queue.appendleft(lost.cue)

    def check(self, text: str) -> None:
        """Raise `Refusal` (`context_exceeded`) if a line is too long for the NPC."""
        try:
            self.dialogue.check(text)
        except EngineError as error:
            raise refusal_of(error) from error

    def greet(self, cue: Cue) -> None:
        """Speak a greeting, after what is being said and what waits already."""
        self._ledger.accept(self.npc, cue)
        self._queue.append(cue)
        self.go_on()

    def interrupt(self, mode: Mode, heard: int) -> None:
        """Stop the turn being spoken; `heard` of its chunks reached the one who interrupts."""
        answer = self.answer
        assert answer is not None
        chunks = answer.turn.chunks
        if mode == "truncate":
            self._stop(answer, Ending("interrupted", "truncate", min(heard, len(chunks))))
        elif mode == "cancel":
            self._stop(answer, Ending("cancelled", "cancel", 0))
        elif not chunks or _SENTENCE_ENDED.search(answer.turn.text()):
            self._stop(answer, Ending("interrupted", "yield", len(chunks)))
        else:
            answer.yielding = True

    def heard(self, turn: str, player: str, heard: int) -> bool:
        """Let memory follow how far a finished turn was played. False if the turn is not known.

        Only the player it answered decides; what was cancelled stays forgotten.
        """
        spoken = self._finished.get(turn)
        if spoken is None:
            answer = self.answer  # one that is still spoken ends first; then reports count
            return answer is not None and answer.turn.id == turn and answer.cue.reaches(player)
        if spoken.hearers is not None and player not in spoken.hearers:
            return False
        if spoken.player == player and not spoken.final:
            heard = min(heard, len(spoken.chunks))
            self.dialogue.amend(turn, "".join(spoken.chunks[:heard]), heard)
        return True

    def withdraw(self, session: "Session", members: Collection["Session"]) -> None:
        """A session has left: its lines are dropped, and what nobody hears any more is stopped."""
        for cue in [cue for cue in self._queue if cue.session is session]:
            self._queue.remove(cue)
            self._ledger.drop(cue)
        answer = self.answer
        if answer is not None and not answer.cue.is_heard_by(members):
            self._stop(answer, Ending("cancelled", "hang_up", 0))

    def attend(self, connected: Collection["Session"]) -> None:
        """Others are connected than before: a turn that none of them hears soon ends."""
        answer = self.answer
        if answer is None:
            return
        if answer.cue.is_heard_by(connected):
            self._adopt_orphan()
        elif self._orphaned is None:
            loop = asyncio.get_running_loop()
            self._orphaned = loop.call_later(self._flow.orphan_s, self._abandon_orphan, answer)

    @property
    def quiet(self) -> bool:
        """Whether nothing is said and nothing waits."""
        return self.answer is None and not self._queue

    @property
    def turns(self) -> list[str]:
        """Ids of the latest turns, the one being spoken last."""
        return [*self._finished, *([self.answer.turn.id] if self.answer is not None else [])]

    def knows(self, turn: str) -> bool:
        """Whether this turn is being spoken, or lately was."""
        return turn in self._finished or (self.answer is not None and self.answer.turn.id == turn)

    def abandon(self) -> None:
        """End the turn whose end the engine does not confirm."""
        if self.answer is not None and self.answer.ending is not None:
            self._close(self.answer, self.answer.ending)

    def halt(self) -> None:
        """No more words of a model: end the turn. What waits gets turns that fail."""
        if self.answer is not None:
            kept = len(self.answer.turn.chunks)
            self._stop(self.answer, Ending("interrupted", "halted", kept))

    def close(self) -> None:
        """The server goes: end the turn. What waits is left to whoever reads the ledger."""
        self._queue.clear()
        if self.answer is not None:
            kept = len(self.answer.turn.chunks)
            self._stop(self.answer, Ending("interrupted", "drain", kept))

    def freeze(self) -> None:
        """The store does not answer: end the turn while this node may still be the one to."""
        if self.answer is not None:
            kept = len(self.answer.turn.chunks)
            self._stop(self.answer, Ending("interrupted", "degraded", kept))

    def fence(self) -> None:
        """Another node goes on with this scene: not a word more, and no end either."""
        self._adopt_orphan()
        self._queue.clear()
        answer, self.answer = self.answer, None
        if answer is not None and answer.ticket is not None:
            self._cancel(answer.ticket)

    def _check_share(self, cue: Cue) -> None:
        player = cue.session.player
        waiting = sum(other.session.player == player for other in self._queue)
        # One line is answered next; it counts as being answered.
        waiting -= self.answer is None
        if waiting >= self._limits.queued_lines:
            raise Refusal(
                Code.BUSY,
                f"{self.npc} has a line of yours waiting already",
                retry_ms=1000,
                limit=self._limits.queued_lines,
                actual=waiting + 1,
            )
        if len(self._queue) >= self._flow.npc_queue:
            raise Refusal(Code.BUSY, f"too many lines wait for {self.npc}", retry_ms=2000)

    def _prepare(self, cue: Cue) -> Answer:
        turn = Turn(new_id("t"), self.npc, cue.streams, self._flow.delta_ms / 1000)
        brief = self._plot.brief(self.npc, cue)
        self.dialogue.state = brief.state
        request = TurnRequest(
            turn.id,
            cue.line,
            cue.line.audience,
            cue.prefill,
            offer=brief.offer,
            urgent=brief.urgent if self._urgent_by_quest else None,
        )
        speech = self._safety.listen(self.dialogue.persona, cue.line)
        return Answer(cue, turn, request, self.dialogue.channels(request), speech)

    def _begin(self, answer: Answer) -> None:
        try:
            answer.ticket = self.dialogue.begin(answer.request, partial(self._on_output, answer))
        except EngineError as error:
            raise refusal_of(error) from error
        if self._on_prompt is not None:
            self._on_prompt(answer.turn.id, answer.ticket)

    def _open(self, answer: Answer) -> None:
        cue, turn = answer.cue, answer.turn
        self.answer = answer
        private = cue.listeners is not None
        cause = "greeting" if cue.greeting else cue.line.id
        scene = self._scene.id if private else None
        start = TurnStart(turn.id, self.npc, [cause], sorted(cue.hearers or ()), scene)
        for stream in turn.streams:
            stream.append("npc.turn.start", start, opens=turn)
        self._ledger.begin(turn, cue)
        self._tally.count("turns_started")
        attention = None if private else cue.session.player or None
        self._show("busy" if private else "thinking", attention)

    def go_on(self) -> None:
        """Answer what waits. Lines of players without a connection wait until they are back."""
        while self.answer is None and (cue := self._take()) is not None:
            answer = self._prepare(cue)
            if answer.cue.greeting and not self.gone:
                self._open(answer)
                answer.turn.append(answer.cue.greeting)
                self._close(answer, Ending("completed", "greeting", 1))
                continue
            try:
                if self.gone:
                    raise Refusal(Code.NO_NPC, f"{self.npc} has left")
                self._begin(answer)
            except Refusal as refusal:
                self._open(answer)
                err = TurnError(refusal.code, refusal.msg, refusal.retry_ms)
                self._close(answer, Ending("failed", "engine", 0, err))
            else:
                self._open(answer)
        if self.answer is None:
            self._show("idle", None)

    def _recollected(self, line: str) -> None:
        """What a line brings to mind is known now, or is not waited for any longer."""
        self._recollecting.discard(line)
        self._ledger.begin_unit()
        self.go_on()

    def _take(self) -> Cue | None:
        """The next line to answer."""
        cue = next((cue for cue in self._queue if not cue.session.away), None)
        if cue is None or cue.line.id in self._recollecting:
            return None
        self._queue.remove(cue)
        return cue

    def _abandon_orphan(self, answer: Answer) -> None:
        self._orphaned = None
        self._ledger.begin_unit()
        self._stop(answer, Ending("abandoned", "orphaned", len(answer.turn.chunks)))

    def _adopt_orphan(self) -> None:
        if self._orphaned is not None:
            self._orphaned.cancel()
            self._orphaned = None

    def _on_output(self, answer: Answer, output: RequestOutput) -> None:
        if self.answer is not answer:
            return  # abandoned
        self._ledger.begin_unit()
        answer.tokens += len(output.token_ids)
        self._take_apart(answer, answer.channels.push(output.text))
        if output.finish is None:
            return
        if output.usage is not None:
            answer.usages.append(output.usage)
            self._spend(answer, output.usage)
        if output.finish in ("stop", "length"):
            self._take_apart(answer, answer.channels.flush())
            self._filter(answer, "", last=True)
            self._break_silence(answer)
        if answer.ending is None and answer.other_words and self._find_other_words(answer):
            return
        self._close(answer, answer.ending or natural_ending(answer, output))
        self.go_on()

    def _take_apart(self, answer: Answer, pieces: list[Piece | Act]) -> None:
        """Let each piece of the engine's words go its way."""
        for piece in pieces:
            if answer.ending is not None or answer.other_words:
                return
            if isinstance(piece, Act):
                self._act(answer, piece)
            elif piece.channel == "speech":
                self._filter(answer, piece.text)
            elif piece.channel == "stage":
                self._show_aside(answer, piece.text)
            else:
                self._tally.count("thoughts")  # nobody's business

    def _act(self, answer: Answer, act: Act) -> None:
        line = answer.cue.line
        if all(self._passes(text, line) == text for text in _texts(act.args)):
            answer.acts.append(self._plot.act(self.npc, answer, act))
            self._tally.count("actions")
        else:
            self._tally.count("actions_filtered")

    def _show_aside(self, answer: Answer, text: str) -> None:
        shown = self._passes(text, answer.cue.line)
        if not shown:
            return
        turn = answer.turn
        turn.publish()  # clients see the words before it first
        for stream in turn.streams:
            aside = NpcAside(turn.id, self.npc, "stage", shown, len(turn.chunks))
            stream.append("npc.aside", aside)

    def _passes(self, text: str, line: Line) -> str:
        """What may be shown of a text that is no speech; "" if nothing."""
        listener = self._safety.listen(self.dialogue.persona, line)
        begun = listener.feed(text)
        rest = listener.finish() if begun.stop is None else begun
        return "" if rest.stop is not None else begun.text + rest.text

    def _spend(self, answer: Answer, usage: Usage) -> None:
        computed = usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
        self._budgets.spend(self.account, answer.cue.session.player, computed)

    def _filter(self, answer: Answer, text: str, *, last: bool = False) -> None:
        """Speak what may be spoken of the engine's words."""
        if answer.ending is not None or answer.other_words:
            return
        if answer.mid_space and text:
            text = text.lstrip()
            answer.mid_space = not text
        text, answer.opening = answer.opening + text, ""
        passed = answer.speech.feed(text)
        self._speak(answer, passed)
        if last and passed.stop is None and answer.ending is None:
            self._speak(answer, answer.speech.finish())

    def _speak(self, answer: Answer, passed: Passed) -> None:
        if passed.text:
            self._say(answer, passed.text)
        if passed.stop is None or answer.ending is not None:
            return
        if passed.stop.action == "block":
            self._deflect(answer)
        else:
            answer.other_words = True
            avoid = (*answer.request.avoid, passed.found)
            answer.request = replace(answer.request, avoid=avoid)
            assert answer.ticket is not None
            self._cancel(answer.ticket)

    def _find_other_words(self, answer: Answer) -> bool:
        """Let the NPC go on after what it said up to words that it may not say. False if it does
        not: then the turn has an ending.
        """
        said, request = answer.turn.text(), answer.request
        if len(request.avoid) <= self._safety.retries:
            speech = self._safety.listen(self.dialogue.persona, answer.cue.line, said)
            again = replace(request, prefill=said.rstrip())
            answer.begin_again(again, self.dialogue.channels(again), speech)
            try:
                self._begin(answer)
            except Refusal:
                pass
            else:
                return True
        self._deflect(answer)
        return False

    def _break_silence(self, answer: Answer) -> None:
        """A reply is at its end: if nothing is left of its words, an authored line is said."""
        undecided = answer.ending is None and not answer.other_words
        filtered = answer.speech.touched or answer.request.avoid
        if undecided and filtered and not answer.turn.chunks:
            self._deflect(answer)

    def _deflect(self, answer: Answer) -> None:
        """End a turn whose words may not be said: with an authored line, which is not remembered,
        if nothing was said yet.
        """
        kept = len(answer.turn.chunks)
        if not kept:
            answer.deflected = True
            self._say(answer, self._safety.deflection(answer.turn.id))
        self._stop(answer, Ending("truncated", "filtered", kept))

    def _say(self, answer: Answer, text: str) -> None:
        turn = answer.turn
        enough = not answer.deflected and self.dialogue.said_enough(answer.request, answer.tokens)
        text, over = answer.sentence.push(text, answer.yielding or enough)
        if not turn.chunks and answer.cue.listeners is None:
            self._show("speaking", answer.cue.session.player or None)
        if turn.bytes + encoded_size(text) > self._limits.out_bytes - _OVERHEAD_BYTES:
            self._stop(answer, Ending("truncated", "length", len(turn.chunks)))
            return
        if text:
            turn.append(text)
            self._ledger.words(turn, answer.cue)
        if over and answer.yielding:
            self._stop(answer, Ending("interrupted", "yield", len(turn.chunks)))
        elif over:
            self._stop(answer, Ending("completed", "stop", len(turn.chunks)))

    def _stop(self, answer: Answer, ending: Ending) -> None:
        """No more words. The turn ends when the engine confirms, within two of its steps."""
        if answer.ending is None:
            answer.ending = ending
            assert answer.ticket is not None
            self._cancel(answer.ticket)

    def _close(self, answer: Answer, ending: Ending) -> None:
        self._adopt_orphan()
        turn = answer.turn
        turn.publish()
        charges = bill(answer)
        end = TurnEnd(
            turn.id,
            self.npc,
            ending.status,
            ending.reason,
            len(turn.chunks),
            turn.text(),
            ending.kept,
            tuple(answer.acts),
            charges,
            ending.err,
            self._emotion(),
        )
        try:  # remembered before anybody can answer it
            self.dialogue.commit(
                answer.request, turn.text(ending.kept), ending.kept, ending.status, now_ms()
            )
        except Exception:  # whatever becomes of memory, a turn that started ends
            _log.exception("a turn was not remembered", turn=turn.id)
        for stream in turn.streams:
            stream.append("npc.turn.end", end, closes=turn)
        spoken = self._finished[turn.id] = Spoken(
            answer.cue.session.player,
            answer.cue.hearers,
            tuple(turn.chunks[: ending.kept] if answer.deflected else turn.chunks),
            final=ending.status in ("cancelled", "failed"),
        )
        if len(self._finished) > self._flow.finished_turns:
            self._ledger.let_go(self._finished.popitem(last=False)[0])
        self._ledger.end(turn, answer.cue, spoken)
        self._tally.count(f"turns_ended_{ending.status}")
        self._tally.count("actions_dropped", answer.channels.dropped)
        if not answer.cue.greeting:
            self._tally.measure("queue_ms", charges.queue_ms)
            self._tally.measure("ttft_ms", charges.ttft_ms)
            self._tally.measure("turn_ms", charges.total_ms)
        self.answer = None

    def look(self) -> None:
        """Show the mood as it is by now: it dies away by itself. Call about once a second, and when
        something has happened.
        """
        self._show(self.activity, self._attention)

    def _show(self, activity: Activity, attention: str | None) -> None:
        shown = activity, self.dialogue.feelings.mood.at(now_ms()).name, attention
        if not self.gone and shown != (self.activity, self.mood, self._attention):
            self.activity, self.mood, self._attention = shown
            self.state.changed()

    def _describe(self, rev: int) -> NpcState:
        return NpcState(self.npc, rev, self.activity, self.mood, self._attention)

    def _emotion(self) -> Emotion | None:
        felt = self.dialogue.feelings.mood.at(now_ms())
        return Emotion(felt.name, round(felt.level, 2)) if felt.level >= FAINT else None


def _texts(value: object) -> Iterator[str]:
    """All texts in the arguments of an action."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)


def refusal_of(error: EngineError) -> Refusal:
    """What a client is told when the engine refuses."""
    if isinstance(error, ContextExceeded):
        return Refusal(Code.CONTEXT_EXCEEDED, str(error), limit=error.limit, actual=error.actual)
    if isinstance(error, QueueFull):
        return Refusal(Code.BUSY, "too many answers are waiting", retry_ms=error.retry_ms)
    if isinstance(error, NoRoom):
        return Refusal(Code.BUSY, "memory is short", retry_ms=error.retry_ms)
    known = {code.value for code in Code}
    code = Code(error.code) if error.code in known else Code.INTERNAL
    return Refusal(code, str(error), retry_ms=getattr(error, "retry_ms", None))
