"""The text side of one request: from sampled tokens to what may be shown, and whether it ends."""

import msgspec

from engine.decoding.constraint import Constraint
from engine.decoding.detokenize import ByteDetokenizer, Detokenizer, Pieces
from engine.decoding.stops import SentenceEnd, StopStrings
from engine.outputs import FinishReason
from engine.params import SamplingParams


class Released(msgspec.Struct, frozen=True, gc=False):
    """What one token released: text that may be shown, and the reason if it was the last token."""

    text: str
    finish: FinishReason | None = None


class TextStream:
    """Turns the tokens of one request into text and decides when it ends.

    Held back are incomplete characters and tails that may begin a stop string. At the end what was
    held back for a stop string that did not come is released; half a character never is.

    With a grammar a reply ends where that has no continuation. An end-of-sequence token always ends
    it, because none is drawn before the text is whole; stop strings and sentences end it only where
    what was released is a whole text of the grammar.
    """

    def __init__(
        self,
        pieces: Pieces,
        params: SamplingParams,
        eos_ids: frozenset[int],
        constraint: Constraint | None = None,
    ) -> None:
        self._min_tokens, self._max_tokens = params.min_tokens, params.max_tokens
        self._sentence_after = params.sentence_after
        self._constraint = constraint
        self._detokenizer: Detokenizer | ByteDetokenizer
        if constraint is None:
            self._eos_ids = frozenset() if params.ignore_eos else eos_ids
            self._detokenizer = Detokenizer(pieces)
            self._stops, self._sentence = StopStrings(params.stop), SentenceEnd()
        else:
            self._eos_ids = eos_ids
            self._detokenizer = ByteDetokenizer(constraint.spell)
            self._stops = StopStrings(params.stop, self._whole)
            self._sentence = SentenceEnd(self._whole)
        self._released = ""  # with a grammar: all text so far
        self._count = 0

    def push(self, token: int) -> Released:
        """Take in the next token of the reply."""
        self._count += 1
        if token in self._eos_ids:
            return Released(self._stops.flush(), "stop")
        text, stopped, ended = self._detokenizer.push(token), False, False
        if self._count >= self._min_tokens:
            text, stopped = self._stops.push(text)
        if self._sentence_after is not None:
            text, ended = self._sentence.push(text, self._count > self._sentence_after)
        if stopped or ended:
            return Released(text, "stop")
        if self._constraint is not None:
            self._released += text
            if self._constraint.finished:
                return Released(text + self._stops.flush(), "stop")
        if self._count >= self._max_tokens:
            return Released(text + self._stops.flush(), "length")
        return Released(text)

    def _whole(self, text: str) -> bool:
        """Whether the reply, cut after `text`, is a whole text of its grammar."""
        return self._constraint is not None and self._constraint.is_whole(self._released + text)
