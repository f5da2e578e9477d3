"""Tokens to text, one at a time, whole characters only."""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"
# A UTF-8 character has at most four bytes; after this many tokens a cut character will never be
# completed.
_PATIENCE = 6


class Decodes(Protocol):
    """The part of a tokenizer this needs.

    Attributes:
        concatenates: whether a token that is whole characters reads the same behind any other that
            shows, so that the text of a list is that of its tokens one after the other.
    """

    @property
    def concatenates(self) -> bool: ...  # noqa: D102

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; a cut character is U+FFFD."""


class Pieces:
    """What one tokenizer's tokens read as; shared by all its replies.

    Attributes:
        known: texts of tokens, as far as they have been met, that read the same behind any other
            that shows.
    """

    def __init__(self, tokenizer: Decodes) -> None:
        self.known: dict[int, str] = {}
        self.decode = tokenizer.decode
        self._concatenates = tokenizer.concatenates

    def learn(self, token: int, before: str, text: str) -> None:
        """`text` was read where a token follows one that reads `before` by itself."""
        if self._concatenates and before and text.startswith(before) and _REPLACEMENT not in text:
            self.known[token] = text[len(before) :]


class Detokenizer:
    """Text of a growing list of tokens.

    A byte-level token may end in the middle of a character, so the text of a list is not the sum of
    its tokens' texts. A short window of recent tokens is decoded again with each new one; what it
    gained is new, unless it ends inside a character. A token that is known to be whole characters
    needs none of that.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        # Context first: some tokenizers decode a word differently at the start of a text.
        self._window: list[int] = []
        self._context = 0  # tokens of the window all of whose text was returned
        self._shown: str | None = ""  # text of the window that was returned; None: all of it
        self._follows = False  # whether the window is context that shows

    def push(self, token: int) -> str:
        """Take in one token; return the text that is certain now, perhaps none."""
        if self._follows:
            text = self._pieces.known.get(token)
            if text is not None:
                self._keep([token], None)
                self._follows = text != ""
                return text
        return self._decoded(token)

    def _decoded(self, token: int) -> str:
        decode = self._pieces.decode
        if self._shown is None:
            self._shown = decode(self._window)
        shown = self._shown
        self._window.append(token)
        text = decode(self._window)
        if text.endswith(_REPLACEMENT) and len(self._window) - self._context < _PATIENCE:
            self._follows = False
            return self._gain(text.rstrip(_REPLACEMENT), shown)
        if self._follows:
            self._pieces.learn(token, shown, text)
        new = self._gain(text, shown)
        fresh = self._window[self._context :]
        # The last token is context enough, unless it is but the end of a character.
        self._keep(fresh[-1:], decode(fresh[-1:]))
        if self._shown.endswith(_REPLACEMENT) and not text.endswith(_REPLACEMENT):
            self._keep(fresh, decode(fresh))
        self._follows = self._shown != ""
        return new

    def _keep(self, context: list[int], shown: str | None) -> None:
        """Begin a new window with so many tokens whose text was returned."""
        self._window, self._context, self._shown = context, len(context), shown

    def _gain(self, text: str, shown: str) -> str:
        """What `text`, the window's text so far, has beyond what was shown; bytes that are no text
        are lost.
        """
        new = text[len(shown) :]
        if new:
            self._shown = text
        return new.replace(_REPLACEMENT, "")


class ByteDetokenizer:
    """Text of a growing list of tokens that are known by their bytes.

    For replies with a grammar: their text must be, to the character, what the grammar has read.
    """

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self._spell = spell
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Take in one token; return the text that is certain now, perhaps none."""
        return self._decoder.decode(self._spell(token))
