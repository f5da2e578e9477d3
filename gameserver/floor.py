"""Who may make one NPC speak: lines in order of arrival, one turn at a time."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from engine.errors import EngineError
from engine.outputs import RequestOutput
from gameserver.answer import Answer, Cue, Ending, Lost, Spoken, bill
from gameserver.backstage import Backstage
from gameserver.budgets import account_of
from gameserver.countenance import Countenance
from gameserver.delivery import Delivery, Mode
from gameserver.messages import Activity, TurnEnd, TurnError, TurnStart
from gameserver.overload.before import Before
from gameserver.protocol import Code, Refusal, now_ms
from gameserver.refusals import refusal_of
from gameserver.waiting import WaitingLines
from npc.dialogue import Dialogue

if TYPE_CHECKING:
    from gameserver.session import Session

_log = structlog.get_logger("troupe.game")


class Floor:
    """One NPC of a running scene: what it is saying, and the lines that wait for it.

    Attributes:
        dialogue: what the NPC knows, and how it answers.
        npc: its id.
        account: whose budget its words are on.
        answer: the turn being spoken.
        face: what one sees of it.
        gone: whether a new version of the scene has no such NPC: it ends its turn, and every line
            that waits for it gets a turn that fails.
    """

    def __init__(self, dialogue: Dialogue, backstage: Backstage) -> None:
        self.dialogue = dialogue
        self.npc = dialogue.persona.id
        self.account = account_of(backstage.account, self.npc)
        self.answer: Answer | None = None
        self.face = Countenance(dialogue, backstage.scene)
        self.gone = False
        self._scene = backstage.scene
        self._ledger = backstage.ledger
        self._budgets = backstage.budgets
        self._tally = backstage.tally
        self._flow = backstage.settings.flow
        share = backstage.settings.limits.queued_lines
        self._queue = WaitingLines(self.npc, share, self._flow.npc_queue)
        self._delivery = Delivery(
            dialogue,
            backstage,
            self.account,
            on_output=self._on_output,
            on_first_word=self._on_first_word,
        )
        self._orphaned: asyncio.TimerHandle | None = None
        self._finished: OrderedDict[str, Spoken] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Lines that wait."""
        return len(self._queue)

    @property
    def under_way(self) -> int:
        """Turns that are spoken or wait."""
        return len(self._queue) + (self.answer is not None)

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
        self._queue.check(cue.session.player, speaking=self.answer is not None)
        self._budgets.check(self.account, cue.session.player)
        self._budgets.share.admit(self)
        cue = self._delivery.admit(cue, self._before())
        if cue.bark:
            return self._bark(cue, announce)
        recollected = partial(self._recollected, cue.line.id)
        if not self.dialogue.prepare(cue.line, recollected):
            self._queue.recollect(cue.line.id)
        if self.answer is not None or self._queue.recollecting:
            self._budgets.turn(self.account, cue.session.player)
            announce()
            self._ledger.accept(self.npc, cue)
            self._queue.append(cue)
            self._hurry()
            return self._queue.present - (self.answer is None)
        answer = self._begun(cue)
        if answer.cue.authored:
            return self._bark(answer.cue, announce)
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
        self._close(
            Answer(lost.cue, lost.turn), Ending("abandoned", "owner_lost", len(lost.turn.chunks))
        )
        if lost.again:
            self._ledger.accept(self.npc, lost.cue)
            self._queue.put_first(lost.cue)

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
        assert self.answer is not None
        self._delivery.interrupt(self.answer, mode, heard)

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
        for cue in self._queue.withdraw(lambda cue: cue.session is session):
            self._ledger.drop(cue)
        answer = self.answer
        if answer is not None and not answer.cue.is_heard_by(members):
            self._delivery.stop(answer, Ending("cancelled", "hang_up", 0))

    def forget(self, player: str) -> None:
        """Let the NPC forget a player: also the lines of theirs that wait, and the answer that is
        being given to one, of which nothing is kept.
        """
        for cue in self._queue.withdraw(lambda cue: cue.session.player == player):
            self._ledger.drop(cue)
        answer = self.answer
        if answer is not None and answer.cue.session.player == player:
            self._delivery.stop(answer, Ending("cancelled", "forgotten", 0))
            assert answer.ending is not None
            answer.ending = replace(answer.ending, kept=0)  # also of one that was ending already
        self.dialogue.forget(player)

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
        self._break_off("halted")

    def close(self) -> None:
        """The server goes: end the turn. What waits is left to whoever reads the ledger."""
        self._queue.clear()
        self._break_off("drain")

    def freeze(self) -> None:
        """The store does not answer: end the turn while this node may still be the one to."""
        self._break_off("degraded")

    def fence(self) -> None:
        """Another node goes on with this scene: not a word more, and no end either."""
        self._adopt_orphan()
        self._queue.clear()
        answer, self.answer = self.answer, None
        if answer is not None and answer.ticket is not None:
            self._delivery.cancel(answer)

    def _break_off(self, reason: str) -> None:
        if self.answer is not None:
            kept = len(self.answer.turn.chunks)
            self._delivery.stop(self.answer, Ending("interrupted", reason, kept))

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
        while self.answer is None and (cue := self._queue.take()) is not None:
            try:
                if self.gone:
                    raise Refusal(Code.NO_NPC, f"{self.npc} has left")
                answer = self._begun(cue)
            except Refusal as refusal:
                answer = self._delivery.answer_to(cue)
                self._open(answer)
                err = TurnError(refusal.code, refusal.msg, refusal.retry_ms)
                self._close(answer, Ending("failed", "engine", 0, err))
                continue
            if answer.cue.authored:
                self._recite(answer)
                continue
            self._open(answer)
            self._hurry()
        if self.answer is None:
            self._show("idle", None)

    def _begun(self, cue: Cue) -> Answer:
        """The answer to a line, begun unless its words are authored; raises `Refusal`."""
        answer = self._delivery.answer_to(cue)
        if not cue.authored:
            try:
                self._delivery.begin(answer)
            except Refusal as refusal:
                return self._delivery.answer_to(self._delivery.excused(cue, refusal))
        return answer

    def _before(self) -> Before:
        """What is to be said before the answer to a line that comes now."""
        now, answer = asyncio.get_running_loop().time(), self.answer
        asked_at, spoke_at = (answer.asked_at, answer.spoke_at) if answer else (None, None)
        return Before(
            self._queue.present,
            None if asked_at is None else now - asked_at,
            None if spoke_at is None else now - spoke_at,
        )

    def _hurry(self) -> None:
        """Let the answer know that somebody else waits for one, if so."""
        if self.answer is not None and self._queue.has_others(self.answer.cue.session.player):
            self.answer.hurried = True

    def _bark(self, cue: Cue, announce: Callable[[], None]) -> int:
        """Take a line in that an authored one answers, in its turn; see `offer`."""
        self._budgets.turn(self.account, cue.session.player)
        announce()
        self._ledger.accept(self.npc, cue)
        position = self._queue.present + (self.answer is not None)
        self._queue.append(cue)
        self.go_on()
        return position

    def _recite(self, answer: Answer) -> None:
        """A whole turn of authored words."""
        cue = answer.cue
        self._open(answer)
        if cue.bark:
            self.dialogue.hear(cue.line)
            answer.request = replace(answer.request, judged=False)
        answer.turn.append(cue.authored)
        self._close(answer, Ending("completed", "greeting" if cue.greeting else "bark", 1))

    def _recollected(self, line: str) -> None:
        """What a line brings to mind is known now, or is not waited for any longer."""
        self._queue.recollected(line)
        self._ledger.begin_unit()
        self.go_on()

    def _abandon_orphan(self, answer: Answer) -> None:
        self._orphaned = None
        self._ledger.begin_unit()
        self._delivery.stop(answer, Ending("abandoned", "orphaned", len(answer.turn.chunks)))

    def _adopt_orphan(self) -> None:
        if self._orphaned is not None:
            self._orphaned.cancel()
            self._orphaned = None

    def _on_output(self, answer: Answer, output: RequestOutput) -> None:
        if self.answer is not answer:
            return  # abandoned
        self._ledger.begin_unit()
        ending = self._delivery.take(answer, output)
        if ending is not None:
            try:
                self._close(answer, ending)
            finally:  # whatever became of this turn, nobody waits for it
                self.go_on()

    def _on_first_word(self, answer: Answer) -> None:
        if answer.cue.listeners is None:
            self._show("speaking", answer.cue.session.player or None)

    def _close(self, answer: Answer, ending: Ending) -> None:
        self.answer = None
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
            self.face.emotion(),
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
        if not answer.cue.authored:
            self._tally.measure("queue_ms", charges.queue_ms)
            self._tally.measure("ttft_ms", charges.ttft_ms)
            self._tally.measure("turn_ms", charges.total_ms)

    def look(self) -> None:
        """Show the mood as it is by now. See `Countenance.look`."""
        if not self.gone:
            self.face.look()

    def _show(self, activity: Activity, attention: str | None) -> None:
        if not self.gone:
            self.face.show(activity, attention)
