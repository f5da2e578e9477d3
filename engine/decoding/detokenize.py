"""Tokens to text, one at a time, whole characters only."""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"
# A UTF-8 character has at most four bytes; after this many tokens a cut character will never be
# completed.
_PATIENCE = 6


class Decodes(Protocol):
    """The part of a tokenizer this needs."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; a cut character is U+FFFD."""


class Detokenizer:
    """Text of a growing list of tokens.

    A byte-level token may end in the middle of a character, so the text of a list is not the sum of
    its tokens' texts. A short window of recent tokens is decoded again with each new one; what it
    gained is new, unless it ends inside a character.
    """

    def __init__(self, tokenizer: Decodes) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown = ""  # text of the window that was returned already

    def push(self, token: int) -> str:
        """Take in one token; return the text that is certain now, perhaps none."""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        if text.endswith(_REPLACEMENT) and len(self._window) <= _PATIENCE:
            return self._gain(text.rstrip(_REPLACEMENT))
        new = self._gain(text)
        # Keep the last token as context: some tokenizers decode a word differently at the start of
        # a text.
        self._window = self._window[-1:]
        self._shown = self._tokenizer.decode(self._window)
        return new

    def _gain(self, text: str) -> str:
        """What `text`, the window's text so far, has beyond what was shown; bytes that are no text
        are lost.
        """
        new = text[len(self._shown) :]
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
