"""One NPC in one running scene: what it has heard, and its next words."""

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.errors import ContextExceeded
from engine.face import AnyEngine
from engine.outputs import RequestOutput
from engine.params import SamplingParams
from engine.prefixes import Prefix
from engine.ticket import Ticket
from npc.actions.channels import Channels
from npc.actions.offer import Offer
from npc.feelings import Feelings
from npc.judgement import Judge
from npc.lore import Lorebook, LoreSource
from npc.notes import Moment, Note, NoteSource, fitting
from npc.persona import Persona
from npc.prompt import STRANGER, PromptWriter, Utterance, stops
from npc.purse import Free, Purse
from npc.recall import Recall
from npc.settings import ReplySettings
from npc.shelf import Shelf
from npc.transcript import Audience, Entry, Line, Transcript
from scenes.conditions import WorldState
from scenes.reactions import Reaction

__all__ = ["Dialogue", "Line", "TurnRequest"]

_UNBRACKETED = str.maketrans("[]", "()")


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """An order to speak.

    Attributes:
        turn: its id.
        line: what is answered.
        audience: players who will hear the answer; None: everybody in the scene.
        prefill: words the answer begins with. The engine goes on after them; they are not part of
            its output.
        avoid: words that earlier tries at this turn used and this one must not.
        offer: what may be done beside talking; None for an NPC that only talks.
        urgent: whether the answer goes before others; None leaves it to the NPC's kind.
        brevity: share of its usual length that the answer may have.
        judged: whether the model may be asked afterwards what the turn has changed.
    """

    turn: str
    line: Line
    audience: Audience = None
    prefill: str = ""
    avoid: tuple[str, ...] = ()
    offer: Offer | None = None
    urgent: bool | None = None
    brevity: float = 1.0
    judged: bool = True


class Dialogue:
    """What one NPC hears and says in one running scene.

    Attributes:
        persona: who it is.
        prefix: scene and persona.
        greeting: its authored first line, which needs no model; "" for none.
        state: of the world, on which some of its lore depends; whoever runs the scene renews it.
        present: players who are in the scene; renewed in the same way.
        feelings: its mood, and what it thinks of whom.
        sources: of what it has in mind, beside its lore; its feelings are among them. What the
            last one knows stands closest to the newest line, and is the last to be left out where
            room is short.
        purse: pays for what it thinks.
    """

    def __init__(
        self,
        persona: Persona,
        prefix: Prefix,
        stream: str,
        engine: AnyEngine,
        writer: PromptWriter,
        settings: ReplySettings,
        others: tuple[str, ...] = (),
        lore: Lorebook | None = None,
        lore_tokens: int = 0,
        sources: Sequence[NoteSource] = (),
        reactions: Iterable[Reaction] = (),
        shelf: Shelf | None = None,
    ) -> None:
        """
        Args:
            prefix: scene and persona, warm.
            stream: id of the running scene.
            others: names of the NPCs around, for whom this one must not speak; its own may be
                among them.
            lore: what may come to its mind.
            lore_tokens: most tokens of it in one turn; 0 takes those of `settings`.
            sources: see the class.
            reactions: of its scene, beside its own.
            shelf: where its transcript is kept; what is there already, it remembers.
        """
        self._stream = stream
        self.state = WorldState()
        self.present = frozenset[str]()
        self.feelings = Feelings(settings.feelings)
        self.purse: Purse = Free()
        self.sources = (*sources, self.feelings)
        self._settings = settings
        self.recast(persona, prefix, others, lore, lore_tokens, reactions)
        self._engine = engine
        self._writer = writer
        self._transcript = Transcript(settings.transcript_lines, settings.circles, shelf)
        self._judge = None
        if settings.feelings.judge and not engine.scripted:
            self._judge = Judge(engine, writer, settings.priorities.ambient)
        # Where the history of each audience begins, so that it begins there again next time.
        self._begins: OrderedDict[Audience, tuple[int, int]] = OrderedDict()

    def recast(
        self,
        persona: Persona,
        prefix: Prefix,
        others: tuple[str, ...],
        lore: Lorebook | None = None,
        lore_tokens: int = 0,
        reactions: Iterable[Reaction] = (),
    ) -> None:
        """Go on as a new version of the same NPC, which remembers what the old one heard. Replies
        that are being computed end as they began.
        """
        self.persona = persona
        self.greeting = _greeting(persona, self._stream)
        settings = self._settings
        tokens = lore_tokens or settings.lore_tokens
        self._lore = LoreSource(lore or Lorebook(), tokens, settings.lore_lines)
        self.prefix = prefix
        self._others = others
        self._recall = Recall(persona.examples)
        self.feelings.recast(persona, reactions)

    @property
    def may_act(self) -> bool:
        """Whether the engine can hold replies to what the NPC may do; else it only talks."""
        return "lark" in self._engine.grammar_kinds

    def check(self, text: str) -> None:
        """Raise `ContextExceeded` if a line is too long to be answered."""
        most = self._room - self._writer.overhead - self._writer.name_size
        limit = min(self._settings.line_tokens, max(most, 0))
        actual = self._writer.length(text)
        if actual > limit:
            raise ContextExceeded(limit, actual, "the line")

    def prepare(self, line: Line, then: Callable[[], None]) -> bool:
        """A line has come that will be answered: let the sources look for what it brings to mind.

        Returns:
            Whether it can be answered now; else `then` is called once it can, after a short time at
            most.
        """
        urgent = self._settings.priorities.of(self.persona.kind) == 0
        searches = [
            search
            for source in self._sources
            if (search := source.prepare(line, line.audience, urgent=urgent)) is not None
        ]
        wait_s = self._settings.notes_wait_ms / 1000
        if not searches or not wait_s:
            return True
        waiting = asyncio.ensure_future(asyncio.wait(searches, timeout=wait_s))
        waiting.add_done_callback(lambda _: then())
        return False

    def forget(self, player: str) -> None:
        """Forget what a player said, what was answered, and what the NPC thinks of the player."""
        self._transcript.forget(player)
        self.feelings.forget(player)

    def hear(self, line: Line) -> None:
        """Take in a line that wants no answer, unless it was heard already."""
        if line.id in self._transcript:
            return
        self._transcript.add(line)
        self._tell_heard(line)

    def begin(self, request: TurnRequest, on_output: Callable[[RequestOutput], None]) -> Ticket:
        """Have the engine answer a line, from all that was heard up to now. The line enters the
        transcript if the engine takes the request; a second try at a turn hears nothing new.

        Raises:
            ContextExceeded, QueueFull, EngineStopped: nothing has changed.
        """
        newest = self._utterance(request.line)
        entries = [
            entry
            for entry in self._transcript.told_to(request.audience)
            if entry.line.id != request.line.id
        ]
        # Arrival, frames and the opening of the reply are in the overhead.
        room = self._room - self._writer.overhead
        room -= request.offer.tokens if request.offer else 0
        room -= len(newest.ids) + self._writer.length(request.prefill)
        if room < 0:
            raise ContextExceeded(self._room, self._room - room, "the line")
        recalled = self._recalled(request.line.text, room)
        room -= self._cost(recalled)
        # Where the talk begins must not depend on what the notes of this turn need.
        reserved = min(sum(source.tokens for source in self._sources), room // 2)
        history = self._recent(request.audience, entries, room - reserved)
        told = [self._utterance(entry.line) for entry in history]
        notes = self._notes(request, history, room - self._cost(told))
        ids = self._writer.own(self.persona, told, recalled, newest, request.prefill, notes)
        ticket = self._engine.submit(
            ids,
            self._sampling([*(entry.line for entry in history), request.line], request),
            on_output=on_output,
            prefix=self.prefix,
            priority=self._settings.priorities.of(self.persona.kind, request.urgent),
            salt=self._salt(request.audience),
            shares=(f"player {self.purse.payer(request.line.who)}", f"scene {self._stream}"),
        )
        try:
            if not request.avoid:
                self._transcript.add(request.line)
                self._tell_heard(request.line)
        except BaseException:  # nobody gets the ticket, so nobody else can
            self._engine.cancel(ticket)
            raise
        return ticket

    def channels(self, request: TurnRequest) -> Channels:
        """What takes the engine's words of a turn apart."""
        offer = request.offer
        if offer is None:  # an exact stream is what a script is for
            return Channels(plain=self._engine.scripted)
        if self._engine.held:
            return Channels(offer)
        return Channels(offer, partial(self._engine.conforms, offer.grammar()))

    def said_enough(self, request: TurnRequest, tokens: int) -> bool:
        """Whether a turn ends with its sentence after so many tokens. What may be done after a
        sentence belongs to it, so the engine, which knows nothing of actions, does not see to it.
        """
        if request.offer is None or self._engine.scripted:
            return False
        return tokens > round(request.brevity * self._settings.sentence_after)

    def commit(self, request: TurnRequest, text: str, heard: int, status: str, ts: int) -> None:
        """Remember what the NPC said.

        Args:
            text: the words that count, prefill included; "" if none do (yet, see `amend`).
            heard: in how many chunks.
            status: how the turn ended.
            ts: wall clock, ms.
        """
        persona = self.persona
        line = Line(
            request.turn,
            "npc",
            persona.id,
            persona.name,
            persona.id,
            text,
            ts,
            request.audience,
            heard,
            status,
        )
        self._transcript.add(line, answers=request.line.id)
        for source in self.sources:
            source.said(line, request.line, self.present)
        asked = request.judged and bool(text) and request.line.kind == "player"
        if self._judge is not None and asked and self.purse.allows(request.line.who):
            self._have_judged(self._judge, request.line, line)

    def amend(self, turn: str, text: str, heard: int) -> None:
        """More or less of a finished turn was heard than thought; a forgotten turn stays so."""
        line = self._transcript.amend(turn, text, heard)
        if line is not None:
            for source in self.sources:
                source.amended(line)

    def newest(self, most: int) -> list[Line]:
        """What was said last, whispers too: for those who run the server."""
        return self._transcript.newest(most)

    def history(
        self, *, player: str, before: str | None, limit: int
    ) -> tuple[list[Line], str | None]:
        """A page of what a player may see, oldest first.

        Args:
            before: id of the line after the page; None for the newest page. An unknown or
                forgotten one gives an empty page.
            limit: most lines, at least 1.

        Returns:
            The lines, and `before` of the page before this one: None at the beginning.
        """
        lines = self._transcript.seen_by(player)
        if before is not None:
            ends = [at for at, line in enumerate(lines) if line.id == before]
            lines = lines[: ends[0]] if ends else []
        page = lines[max(0, len(lines) - limit) :]
        return page, page[0].id if len(page) < len(lines) else None

    @property
    def _room(self) -> int:
        """Tokens that the own part of a prompt may have."""
        return self._engine.max_model_len - self.prefix.total - self._max_tokens

    @property
    def _max_tokens(self) -> int:
        engine = self._engine
        return engine.scripted_length if engine.scripted else self._settings.max_tokens

    def _recalled(self, text: str, room: int) -> list[Utterance]:
        """Examples to tell again before a line, as far as there is room."""
        writer, told = self._writer, list[Utterance]()
        for example in self._recall.best(text, self._settings.recalled_examples):
            told += [writer.heard(STRANGER, example.player), writer.spoken(example.reply)]
        return told if self._cost(told) <= room else []

    @property
    def _sources(self) -> tuple[NoteSource, ...]:
        return (self._lore, *self.sources)

    def _notes(self, request: TurnRequest, told: list[Entry], room: int) -> list[Utterance]:
        """What to have in mind at a line, as far as there is room."""
        line, audience = request.line, request.audience
        moment = Moment(
            request.turn,
            self.persona,
            line,
            audience,
            [entry.line for entry in told],
            self.present,
            self.state,
        )
        gathered: list[Utterance] = []
        for source in reversed(self._sources):
            if source.tokens > 0:
                notes = fitting(source.notes(moment), min(source.tokens, room), self._note_cost)
                known = [self._known(note) for note in notes]
                room -= self._cost(known)
                gathered = known + gathered
        return gathered

    def _note_cost(self, note: Note) -> int:
        return self._writer.cost(self._known(note))

    def _known(self, note: Note) -> Utterance:
        return self._writer.known(self.persona.name, self._plain(note.text), note.verb)

    def _have_judged(self, judge: Judge, heard: Line, said: Line) -> None:
        salt, private = self._salt(heard.audience), heard.audience is not None
        feel = partial(self.feelings.judged, heard.who, now=said.ts, private=private)
        judge.ask(self.persona, self.prefix, heard, said, salt, feel, self.purse)

    def _tell_heard(self, line: Line) -> None:
        for source in self.sources:
            source.heard(line, self.present)

    def _recent(self, audience: Audience, entries: list[Entry], room: int) -> list[Entry]:
        """The entries that fit into `room` tokens; the beginning moves in hops."""
        settings = self._settings
        begin = self._begins.get(audience, (-1, 0))
        kept = [entry for entry in entries if entry.place >= begin]
        costs = [self._cost([self._utterance(entry.line)]) for entry in kept]
        total, start = sum(costs), 0
        if total <= min(settings.history_tokens, room):
            return kept
        goal = min(int(settings.history_tokens * settings.history_kept), room)
        # A talk begins with somebody else's line, never in the middle of a turn.
        while start < len(kept) and (total > goal or self._is_own(kept[start].line)):
            total -= costs[start]
            start += 1
        if start < len(kept):
            self._begins[audience] = kept[start].place
            self._begins.move_to_end(audience)
            if len(self._begins) > settings.circles:
                self._begins.popitem(last=False)
        return kept[start:]

    def _cost(self, utterances: list[Utterance]) -> int:
        return sum(self._writer.cost(utterance) for utterance in utterances)

    def _utterance(self, line: Line) -> Utterance:
        text = self._plain(line.text)
        return (
            self._writer.spoken(text) if self._is_own(line) else self._writer.heard(line.name, text)
        )

    def _plain(self, text: str) -> str:
        """Words of others, for the prompt. A model repeats what it reads: an NPC that can act must
        not read actions that a player has typed, with a price of the player's choice.
        """
        return text.translate(_UNBRACKETED) if self.persona.actions else text

    def _is_own(self, line: Line) -> bool:
        """Whether the NPC said it, by itself or because the game made it."""
        return line.kind != "player" and line.who == self.persona.id

    def _sampling(self, told: list[Line], request: TurnRequest) -> SamplingParams:
        """How to answer after the lines that the prompt tells."""
        if self._engine.scripted:  # an exact stream is what a script is for
            return SamplingParams(max_tokens=self._max_tokens)
        settings, offer = self._settings, request.offer
        acts = offer is not None and bool(offer.actions)
        names = sorted({self.persona.name, *self._others, *(line.name for line in told)})
        replies = [line.text for line in told if line.kind == "npc" and self._is_own(line)]
        return SamplingParams(
            max_tokens=max(round(request.brevity * settings.max_tokens), 1)
            + (offer.tokens if offer else 0),
            logit_bias=dict.fromkeys(self._writer.brackets if acts else (), settings.act_bias),
            min_tokens=1,  # an NPC that is asked says something
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            repetition_penalty=settings.repetition_penalty,
            presence_penalty=settings.presence_penalty,
            frequency_penalty=settings.frequency_penalty,
            bad_words=self._worn(replies) + request.avoid,
            stop=settings.stop + stops(names),
            # An action may follow the sentence: then whoever takes the reply apart ends it.
            sentence_after=None if offer else round(request.brevity * settings.sentence_after),
            grammar=offer.grammar() if offer else None,
        )

    def _worn(self, replies: list[str]) -> tuple[str, ...]:
        """What the NPC has said often enough."""
        words, most = self._settings.repeat_words, self._settings.repeat_replies
        latest = replies[-most:] if words and most else []
        runs = (run for reply in latest for run in self._writer.runs(reply, words))
        return tuple(dict.fromkeys(runs))

    def _salt(self, audience: Audience) -> str:
        """Who may find whose history in the cache, and so learn from the time it takes."""
        if audience is None:
            return self._stream
        return f"{self._stream}:{','.join(sorted(audience))}"


def _greeting(persona: Persona, stream: str) -> str:
    """One of a persona's first lines: in a running scene always the same, in others another."""
    choices = (persona.greeting, *persona.greetings)
    return choices[zlib.crc32(stream.encode()) % len(choices)]
