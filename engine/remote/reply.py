"""The text side of one remote reply: from what a server sends to what may be shown."""

from collections.abc import Callable

from engine.decoding.stops import SentenceEnd, StopStrings, always
from engine.decoding.text import Released
from engine.params import SamplingParams
from engine.remote.events import Nonsense, WholeCharacters
from engine.tokenizer import Tokenizer

#: Bytes that tokens have at most, on average over a reply, and what is let pass in any case.
_BYTES_PER_TOKEN, _SPARE_BYTES = 32, 4096


class Reply:
    """Text as it comes, cut where it ends. The server is told the same bounds, and not trusted with
    them: a reply never shows a stop string, nor goes on without end.

    Attributes:
        tokens: of the text so far, as the local tokenizer counts.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Tokenizer,
        conforms: Callable[[str], bool] | None = None,
    ) -> None:
        """`conforms` says whether a text is one of the reply's grammar, if it has one."""
        whole = always if conforms is None else self._whole
        self.tokens = 0
        self._conforms = conforms
        self._encode = tokenizer.encode
        self._characters = WholeCharacters()
        self._stops = StopStrings(params.stop, whole)
        self._sentence = SentenceEnd(whole)
        self._sentence_after = params.sentence_after
        self._bytes_left = _BYTES_PER_TOKEN * params.max_tokens + _SPARE_BYTES
        self._released = ""  # with a grammar: all text so far

    def push(self, text: str) -> tuple[Released, tuple[int, ...]]:
        """Take in new text; return what may be shown of it, and the ids of the text itself.

        Raises:
            Nonsense: the server sends more than it was asked for.
        """
        text = self._characters.push(text)
        self._bytes_left -= len(text.encode())
        if self._bytes_left < 0:
            raise Nonsense("the reply is longer than was asked for")
        ids, before = tuple(self._encode(text)) if text else (), self.tokens
        self.tokens += len(ids)
        text, stopped = self._stops.push(text)
        ended = False
        if self._sentence_after is not None:
            text, ended = self._sentence.push(text, before >= self._sentence_after)
        if self._conforms is not None:
            self._released += text
        return Released(text, "stop" if stopped or ended else None), ids

    def flush(self) -> str:
        """The text held back, now that no more will come."""
        rest = self._stops.flush()
        self._released += rest
        return rest

    @property
    def complete(self) -> bool | None:
        """Whether the text so far is one of its grammar; None without one."""
        return None if self._conforms is None else self._conforms(self._released)

    def _whole(self, text: str) -> bool:
        return self._conforms is not None and self._conforms(self._released + text)
