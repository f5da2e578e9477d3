"""Where a text ends: stop strings, and the end of a sentence."""

import re
from collections.abc import Sequence

_SENTENCE_END = re.compile(r"""[.!?…]["'”’)*\]]*(?=\s)|[。！？][」』”’]*""")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Sr|Jr|No|vs|etc)|\b[A-Z])\.$")


class StopStrings:
    """Cuts a stream before the first stop string and never lets a part of one out.

    A tail that may still become a stop string is held back until it is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take in new text; return (text that may be shown, whether a stop string was met)."""
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """The text held back, now that no more will come."""
        held, self._held = self._held, ""
        return held


class SentenceEnd:
    """Ends a stream after a sentence, once it has been told to.

    A full stop ends a sentence if white space follows, so "3.5" and "…?!" are not cut; white space
    is only known with the next token, hence the one-token delay.
    """

    def __init__(self) -> None:
        self._tail = ""  # shown text since the last white space: what a terminator may hang on

    def push(self, text: str, may_end: bool) -> tuple[str, bool]:
        """Take in new text; return (text to show, whether the stream ends here)."""
        joined = self._tail + text
        if may_end:
            for match in _SENTENCE_END.finditer(joined):
                end = match.end()
                if end >= len(self._tail) and not _ABBREVIATION.search(joined[:end]):
                    return joined[len(self._tail) : end], True
        self._tail = re.split(r"\s", joined)[-1]
        return text, False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest tail of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
