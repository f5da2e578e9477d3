"""Holds one reply to its grammar: which tokens may come next, and whether it is whole."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

Banned = npt.NDArray[np.bool_]
Row = npt.NDArray[np.float32]


class Constraint:
    """The grammar's side of one reply.

    The mask of a token depends on all tokens before it. It is begun as soon as those are known and
    made in another thread while a forward pass runs; `banned` waits for what is left of it.
    Everything else happens in the engine's thread.

    Attributes:
        spell: bytes of a token, as the grammar reads it.
        is_whole: whether a text is one of the grammar's.
        accepts: the reply is a whole text of the grammar, though more may follow.
        finished: it is one, and nothing can follow.
        error: why the reply cannot go on, if the grammar became too complex to follow.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        first: Banned,
        workers: Executor,
        *,
        ends: npt.NDArray[np.int64],
        endless: bool,
        spell: Callable[[int], bytes],
        is_whole: Callable[[str], bool],
    ) -> None:
        """Begin a reply.

        Args:
            matcher: at the beginning of the grammar, and nobody else's.
            first: mask of the first token, bool [vocab], True is banned.
            workers: make the other masks.
            ends: end-of-sequence tokens.
            endless: whether those are banned while anything else may follow.
            spell, is_whole: see the attributes.
        """
        self._matcher = matcher
        self._mask = first
        self._next: Future[Banned] | None = None
        self._workers = workers
        self._ends = ends
        self._endless = endless
        self.spell = spell
        self.is_whole = is_whole
        self.accepts = matcher.is_accepting()
        self.finished = False
        self.error: str | None = None

    def push(self, token: int) -> None:
        """Take in the next token of the reply."""
        self._wait()
        matcher = self._matcher
        if self.error is None and not matcher.consume_token(token):
            self.error = complaint(matcher) or f"the grammar does not allow token {token} here"
        self.accepts = self.error is None and matcher.is_accepting()
        self.finished = self.accepts and matcher.is_stopped()

    def begin_mask(self) -> None:
        """Start making the mask of the next token."""
        self._next = self._workers.submit(mask_of, self._matcher, len(self._mask))

    def restrict(self, row: Row, unchanged: Row) -> None:
        """Ban what the grammar does not allow, in place.

        Penalties and bans may have taken every token it allows. It has the last word: then the
        `unchanged` logits of those count, and if even they are all -inf, all are equally likely.

        Args:
            row: logits, float32 [vocab]; a model may have more of them than its tokenizer.
            unchanged: the same as the model made them.
        """
        banned = self.banned()
        if self.error is not None:
            return
        known = row[: len(banned)]
        row[len(banned) :] = -np.inf
        np.copyto(known, -np.inf, where=banned)
        if known.max() == -np.inf:
            np.copyto(known, unchanged[: len(banned)], where=~banned)
        if known.max() == -np.inf:
            known[~banned] = 0

    def banned(self) -> Banned:
        """Which tokens may not come next, bool [vocab]; waits for it. None are banned after an
        error: whatever is drawn then, the reply ends as failed.
        """
        self._wait()
        if self.error is not None:
            return np.zeros_like(self._mask)
        if not self._endless:
            return self._mask
        banned = self._mask.copy()
        banned[self._ends] = True
        return self._mask if banned.all() else banned

    def _wait(self) -> None:
        """Let the worker finish with the matcher; it must not be used by two at once."""
        if self._next is None:
            return
        job, self._next = self._next, None
        failure = job.exception()
        if failure is not None:  # perhaps a panic of the native code, which is no Exception
            self.error = f"{type(failure).__name__}: {failure}"
            return
        self._mask = job.result()
        if self._matcher.is_error():
            self.error = complaint(self._matcher)
        elif self._mask.all():
            self.error = "nothing can follow what the grammar allowed so far"


def mask_of(matcher: "LLMatcher", vocab: int) -> Banned:
    """Which tokens may not come next: bool [vocab], True is banned."""
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    banned: Banned = np.unpackbits(bits, count=vocab, bitorder="little") == 0
    return banned


def complaint(matcher: "LLMatcher") -> str:
    """What a matcher has to say about its error, on one line."""
    text = matcher.get_error().replace("<non-verbose/>", "")
    return " ".join(text.split())[:500]
