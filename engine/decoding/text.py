"""The text side of one request: from sampled tokens to what may be shown, and whether it ends."""

from dataclasses import dataclass

from engine.decoding.detokenize import Decodes, Detokenizer
from engine.decoding.stops import SentenceEnd, StopStrings
from engine.outputs import FinishReason
from engine.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Released:
    """What one token released: text that may be shown, and the reason if it was the last token."""

    text: str
    finish: FinishReason | None = None


class TextStream:
    """Turns the tokens of one request into text and decides when it ends.

    Held back are incomplete characters and tails that may begin a stop string. At the end what was
    held back for a stop string that did not come is released; half a character never is.
    """

    def __init__(self, tokenizer: Decodes, params: SamplingParams, eos_ids: frozenset[int]) -> None:
        self._params = params
        self._eos_ids = frozenset() if params.ignore_eos else eos_ids
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(params.stop)
        self._sentence = SentenceEnd()
        self._count = 0

    def push(self, token: int) -> Released:
        """Take in the next token of the reply."""
        self._count += 1
        if token in self._eos_ids:
            return Released(self._stops.flush(), "stop")
        text, stopped = self._detokenizer.push(token), False
        if self._count >= self._params.min_tokens:
            text, stopped = self._stops.push(text)
        after = self._params.sentence_after
        text, ended = self._sentence.push(text, after is not None and self._count > after)
        if stopped or ended:
            return Released(text, "stop")
        if self._count >= self._params.max_tokens:
            return Released(text + self._stops.flush(), "length")
        return Released(text)
