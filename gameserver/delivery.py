"""How an answer is delivered: the engine's words are taken apart, filtered, spoken, and end."""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

import structlog

from engine.errors import EngineError, RemoteFailed, RemoteUnavailable
from engine.outputs import RequestOutput, Usage
from gameserver.answer import Answer, Cue, Ending, natural_ending
from gameserver.backstage import Backstage
from gameserver.messages import NpcAside, TurnError
from gameserver.overload.before import Before
from gameserver.protocol import Code, Refusal, encoded_size, new_id
from gameserver.refusals import refusal_of
from gameserver.turn import Turn
from npc.actions.channels import Piece
from npc.actions.offer import Act
from npc.dialogue import Dialogue, Line
from npc.safety.filter import Passed

#: Room that `npc.turn.end` needs beside the text.
_OVERHEAD_BYTES = 2048
_SENTENCE_ENDED = re.compile(r"""[.!?…。！？]["'”’)*\]」』]*\s*\Z""")

Mode = Literal["truncate", "cancel", "yield"]

_log = structlog.get_logger("troupe.game")


class Delivery:
    """The way of one NPC's words, from what is asked of the engine to the turn's text."""

    def __init__(
        self,
        dialogue: Dialogue,
        backstage: Backstage,
        account: str,
        *,
        on_output: Callable[[Answer, RequestOutput], None],
        on_first_word: Callable[[Answer], None],
    ) -> None:
        """
        Args:
            account: whose budget the words are on.
            on_output: is given what the engine says; passes it on to `take`.
            on_first_word: called before a turn has its first words.
        """
        self._dialogue = dialogue
        self._npc = dialogue.persona.id
        self._account = account
        self._plot = backstage.plot
        self._safety = backstage.safety
        self._ledger = backstage.ledger
        self._budgets = backstage.budgets
        self._tally = backstage.tally
        self._cancel = backstage.cancel
        self._on_prompt = backstage.on_prompt
        self._overload = backstage.overload
        self._priorities = backstage.settings.replies.priorities
        self._barks = itertools.count()
        self._most_bytes = backstage.settings.limits.out_bytes - _OVERHEAD_BYTES
        self._urgent_by_quest = backstage.settings.replies.urgent_by_quest
        self._on_output = on_output
        self._on_first_word = on_first_word

    def admit(self, cue: Cue, before: Before) -> Cue:
        """A line as it will be answered, after other turns; raises `Refusal` (`busy`) if that would
        take too long.
        """
        priority = self._priority(self._plot.brief(self._npc, cue).urgent)
        prefix, barks = self._dialogue.prefix, self._dialogue.persona.barks
        nobody = not cue.session.player
        how = self._overload.admit(
            priority, prefix, before, has_barks=bool(barks), background=nobody
        )
        return cue if how == "answer" else replace(cue, bark=self._next_bark())

    def excused(self, cue: Cue, refusal: Refusal) -> Cue:
        """A line that no model server can answer, to be answered with a bark.

        Raises:
            Refusal: as given, if something else is the matter, or there is no bark for it.
        """
        bark = self._next_bark() if cue.session.player else ""
        if not bark or not isinstance(refusal.__cause__, RemoteUnavailable):
            raise refusal
        self._tally.count("barks")
        return replace(cue, bark=bark)

    def _next_bark(self) -> str:
        """What the NPC says for want of an answer; "" if it has nothing for that."""
        barks = self._dialogue.persona.barks
        return barks[next(self._barks) % len(barks)] if barks else ""

    def answer_to(self, cue: Cue) -> Answer:
        """An answer of which nothing is asked or said yet."""
        return Answer(cue, Turn(new_id("t"), self._npc, cue.streams, self._overload.merge_s))

    def begin(self, answer: Answer) -> None:
        """Ask the engine for the words.

        Raises:
            Refusal: what the engine says against it, or `internal` for a fault of ours.
        """
        try:
            self._equip(answer)
            self._ask(answer)
        except EngineError as error:
            raise refusal_of(error) from error
        except Exception as fault:
            _log.exception("an answer could not begin", turn=answer.turn.id)
            if answer.ticket is not None:
                self.cancel(answer)
            raise Refusal(Code.INTERNAL, "the answer could not begin") from fault

    def take(self, answer: Answer, output: RequestOutput) -> Ending | None:
        """Take in what the engine says; return how the turn ends once nothing more comes.

        A fault of ours on the way fails this turn, which ends all the same.
        """
        try:
            more = self._deliver(answer, output)
        except Exception:
            _log.exception("an answer broke off", turn=answer.turn.id)
            error = TurnError(Code.INTERNAL, "the answer broke off")
            self.stop(answer, Ending("failed", "engine", len(answer.turn.chunks), error))
            more = output.finish is None
        if more:
            return None
        return answer.ending or self._excuse(answer, output) or natural_ending(answer, output)

    def interrupt(self, answer: Answer, mode: Mode, heard: int) -> None:
        """Stop an answer; `heard` of its chunks reached the one who interrupts."""
        chunks = answer.turn.chunks
        if mode == "truncate":
            self.stop(answer, Ending("interrupted", "truncate", min(heard, len(chunks))))
        elif mode == "cancel":
            self.stop(answer, Ending("cancelled", "cancel", 0))
        elif not chunks or _SENTENCE_ENDED.search(answer.turn.text()):
            self.stop(answer, Ending("interrupted", "yield", len(chunks)))
        else:
            answer.yielding = True

    def stop(self, answer: Answer, ending: Ending) -> None:
        """No more words. The turn ends when the engine confirms, within two of its steps."""
        if answer.ending is None:
            answer.ending = ending
            self.cancel(answer)

    def cancel(self, answer: Answer) -> None:
        """Let the engine say no more, whatever becomes of the turn."""
        assert answer.ticket is not None
        self._cancel(answer.ticket)

    def _equip(self, answer: Answer) -> None:
        cue = answer.cue
        brief = self._plot.brief(self._npc, cue)
        self._dialogue.state = brief.state
        urgent = brief.urgent if self._urgent_by_quest else None
        offer = brief.offer if self._dialogue.may_act else None
        request = replace(
            answer.request,
            offer=offer,
            urgent=urgent,
            brevity=self._overload.brevity(self._priority(brief.urgent)),
            judged=not self._overload.quiet,
        )
        speech = self._safety.listen(self._dialogue.persona, cue.line)
        answer.equip(request, self._dialogue.channels(request), speech)

    def _priority(self, urgent: bool) -> int:
        """The class of an answer that is urgent, or not, as quests go."""
        kind = self._dialogue.persona.kind
        return self._priorities.of(kind, urgent if self._urgent_by_quest else None)

    def _ask(self, answer: Answer) -> None:
        answer.ticket = self._dialogue.begin(answer.request, partial(self._on_output, answer))
        answer.asked_at = answer.asked_at or asyncio.get_running_loop().time()
        if self._on_prompt is not None:
            self._on_prompt(answer.turn.id, answer.ticket)

    def _deliver(self, answer: Answer, output: RequestOutput) -> bool:
        """Let the words go their way; return whether there are more to come."""
        if output.usage is not None:
            self._spend(answer, output.usage)
        answer.tokens += len(output.token_ids)
        self._take_apart(answer, answer.channels.push(output.text))
        if output.finish is None:
            return True
        if output.finish in ("stop", "length"):
            self._take_apart(answer, answer.channels.flush())
            self._filter(answer, "", last=True)
            self._break_silence(answer)
        return answer.ending is None and answer.other_words and self._find_other_words(answer)

    def _spend(self, answer: Answer, usage: Usage) -> None:
        answer.usages.append(usage)
        self._budgets.spend(self._account, answer.cue.session.player, usage.computed)

    # What is no speech

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
            answer.acts.append(self._plot.act(self._npc, answer, act))
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
            aside = NpcAside(turn.id, self._npc, "stage", shown, len(turn.chunks))
            stream.append("npc.aside", aside)

    def _passes(self, text: str, line: Line) -> str:
        """What may be shown of a text that is no speech; "" if nothing."""
        listener = self._safety.listen(self._dialogue.persona, line)
        begun = listener.feed(text)
        rest = listener.finish() if begun.stop is None else begun
        return "" if rest.stop is not None else begun.text + rest.text

    # Speech

    def _filter(self, answer: Answer, text: str, *, last: bool = False) -> None:
        """Speak what may be spoken of the engine's words."""
        if answer.ending is not None or answer.other_words:
            return
        if answer.mid_space and text:
            text = text.lstrip()
            answer.mid_space = not text
        text, answer.opening = answer.opening + text, ""
        assert answer.speech is not None
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
            self.cancel(answer)

    def _say(self, answer: Answer, text: str) -> None:
        turn, request = answer.turn, answer.request
        hurried = answer.hurried and self._overload.hurries
        enough = hurried or self._dialogue.said_enough(request, answer.tokens)
        enough = enough and not answer.deflected
        text, over = answer.sentence.push(text, answer.yielding or enough)
        if not turn.chunks:
            answer.spoke_at = asyncio.get_running_loop().time()
            self._on_first_word(answer)
        if turn.bytes + encoded_size(text) > self._most_bytes:
            self.stop(answer, Ending("truncated", "length", len(turn.chunks)))
            return
        if text:
            turn.append(text)
            self._ledger.words(turn, answer.cue)
        if over and answer.yielding:
            self.stop(answer, Ending("interrupted", "yield", len(turn.chunks)))
        elif over:
            self.stop(answer, Ending("completed", "stop", len(turn.chunks)))

    # In place of words that may not be said

    def _find_other_words(self, answer: Answer) -> bool:
        """Let the NPC go on after what it said up to words that it may not say. False if it does
        not: then the turn has an ending.
        """
        said, request = answer.turn.text(), answer.request
        if len(request.avoid) <= self._safety.retries:
            speech = self._safety.listen(self._dialogue.persona, answer.cue.line, said)
            again = replace(request, prefill=said.rstrip())
            answer.begin_again(again, self._dialogue.channels(again), speech)
            try:
                self._ask(answer)
            except EngineError:
                pass
            else:
                return True
        self._deflect(answer)
        return False

    def _break_silence(self, answer: Answer) -> None:
        """A reply is at its end: if nothing is left of its words, an authored line is said."""
        undecided = answer.ending is None and not answer.other_words
        filtered = (answer.speech and answer.speech.touched) or answer.request.avoid
        if undecided and filtered and not answer.turn.chunks:
            self._deflect(answer)

    def _excuse(self, answer: Answer, output: RequestOutput) -> Ending | None:
        """Let the NPC say a bark, if model servers have failed before its first word."""
        failed = isinstance(output.refusal, RemoteUnavailable | RemoteFailed)
        if not failed or answer.turn.chunks or not answer.cue.session.player:
            return None
        bark = self._next_bark()
        if not bark:
            return None
        self._tally.count("barks")
        self._on_first_word(answer)
        answer.request = replace(answer.request, judged=False)
        answer.turn.append(bark)
        return Ending("completed", "bark", len(answer.turn.chunks))

    def _deflect(self, answer: Answer) -> None:
        """End a turn whose words may not be said: with an authored line, which is not remembered,
        if nothing was said yet.
        """
        kept = len(answer.turn.chunks)
        if not kept:
            answer.deflected = True
            self._say(answer, self._safety.deflection(answer.turn.id))
        self.stop(answer, Ending("truncated", "filtered", kept))


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
