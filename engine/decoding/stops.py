"""Where a text ends: stop strings, and the end of a sentence."""

import re
from collections.abc import Callable, Sequence

_SENTENCE_END = re.compile(r"""[.!?…]["'”’)*\]]*(?=\s)|[。！？][」』”’]*""")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Sr|Jr|No|vs|etc)|\b[A-Z])\.$")


#: Whether a stream is whole after some text that follows what was shown.
Whole = Callable[[str], bool]


def always(text: str) -> bool:
    """Free text is whole wherever it ends."""
    return True


class StopStrings:
    """Cuts a stream before the first stop string and never lets a part of one out.

    A tail that may still become a stop string is held back until it is decided. Stop strings before
    which the stream is not whole are text like any other.
    """

    def __init__(self, stops: Sequence[str], whole: Whole = always) -> None:
        self._stops = tuple(stops)
        self._whole = whole
        self._held = ""
        self._beginnings = frozenset(stop[0] for stop in self._stops)

    def push(self, text: str) -> tuple[str, bool]:
        """Take in new text; return (text that may be shown, whether a stop string was met)."""
        if not self._held and self._beginnings.isdisjoint(text):
            return text, False
        text = self._held + text
        for at in self._found(text):
            if self._whole(text[:at]):
                self._held = ""
                return text[:at], True
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def _found(self, text: str) -> list[int]:
        """Where stop strings begin, in order."""
        places: set[int] = set()
        for stop in self._stops:
            at = text.find(stop)
            while at >= 0:
                places.add(at)
                at = text.find(stop, at + 1)
        return sorted(places)

    def flush(self) -> str:
        """The text held back, now that no more will come."""
        held, self._held = self._held, ""
        return held


class SentenceEnd:
    """Ends a stream after a sentence, once it has been told to.

    A full stop ends a sentence if white space follows, so "3.5" and "…?!" are not cut; white space
    is only known with the next token, hence the one-token delay.
    """

    def __init__(self, whole: Whole = always) -> None:
        self._whole = whole
        self._tail = ""  # shown text since the last white space: what a terminator may hang on

    def push(self, text: str, may_end: bool) -> tuple[str, bool]:
        """Take in new text; return (text to show, whether the stream ends here)."""
        joined = self._tail + text
        if may_end:
            for match in _SENTENCE_END.finditer(joined):
                end = match.end()
                if end < len(self._tail) or _ABBREVIATION.search(joined[:end]):
                    continue
                if self._whole(joined[len(self._tail) : end]):
                    return joined[len(self._tail) : end], True
        words = joined.split()
        self._tail = words[-1] if words and not joined[-1].isspace() else ""
        return text, False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest tail of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
