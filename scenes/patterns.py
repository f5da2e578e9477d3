"""Regular expressions that strangers wrote, matched in time linear in the text by RE2."""

from typing import Protocol, cast

import re2

#: Bytes that one pattern and its automaton may take.
_MEMORY = 1 << 20


class PatternError(ValueError):
    """A pattern cannot be used; the message says why."""


class Pattern(Protocol):
    """A compiled pattern."""

    def search(self, text: str) -> object | None:
        """Something if it occurs in a text, which must be valid Unicode."""


def compile_pattern(pattern: str, *, case: bool) -> Pattern:
    """A pattern in RE2's syntax: no look-around and no back-references, the two things that make
    matching slow.

    Raises:
        PatternError: it is not of that syntax, or takes too much memory.
    """
    options = re2.Options()
    options.case_sensitive = case
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY
    try:
        return cast(Pattern, re2.compile(pattern, options))
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else error
        told = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise PatternError(f"{pattern[:80]!r} is no RE2 pattern: {told[:200]}") from None
