"""What changes a row of logits before a token is drawn from it."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.params import SamplingParams

Row = npt.NDArray[np.float32]


class LogitChanges:
    """The penalties, biases and bans of one request, kept up to date as its output grows.

    Args:
        params: of the request.
        prompt_ids: all prompt tokens, prefixes included; only read for the repetition penalty.
        eos_ids: tokens that may not come before `min_tokens`.
        bad_words: token sequences that must not be completed.

    Attributes:
        bans: those sequences.
        late: tokens that may not come before `min_tokens` others.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        eos_ids: frozenset[int],
        bad_words: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self._params = params
        self.bans = tuple(bad_words)
        self.late = tuple(sorted(eos_ids))
        self._biased = np.array(list(params.logit_bias), dtype=np.int64)
        self._biases = np.array(list(params.logit_bias.values()), dtype=np.float32)
        # By the token before their last: a row looks at those only that may end with it.
        self._bad_words: dict[int | None, list[tuple[int, ...]]] = defaultdict(list)
        for word in bad_words:
            self._bad_words[word[-2] if len(word) > 1 else None].append(word)
        self._count = 0
        # What a bad word may have begun with; a reply may go on for ever.
        longest = max(map(len, bad_words), default=1)
        self._latest: deque[int] = deque(maxlen=max(1, longest - 1))
        self._counts: Counter[int] = Counter()
        self._seen = set(prompt_ids) if params.repetition_penalty != 1 else set()

    @classmethod
    def needed(cls, params: SamplingParams) -> bool:
        """Whether these parameters change logits at all."""
        return bool(
            params.repetition_penalty != 1
            or params.presence_penalty
            or params.frequency_penalty
            or params.logit_bias
            or params.bad_words
            or params.min_tokens
        )

    def push(self, token: int) -> None:
        """Take note of the next output token."""
        self._count += 1
        self._latest.append(token)
        self._counts[token] += 1
        self._seen.add(token)

    def apply(self, row: Row) -> None:
        """Change one row of logits, float32 [vocab], in place."""
        params = self._params
        if params.repetition_penalty != 1:
            seen = np.fromiter(self._seen, dtype=np.int64, count=len(self._seen))
            scores = row[seen]
            penalty = np.float32(params.repetition_penalty)
            row[seen] = np.where(scores > 0, scores / penalty, scores * penalty)
        if self._counts and (params.presence_penalty or params.frequency_penalty):
            tokens = np.fromiter(self._counts, dtype=np.int64, count=len(self._counts))
            counts = np.array([self._counts[token] for token in tokens], dtype=np.float32)
            row[tokens] -= params.presence_penalty + params.frequency_penalty * counts
        row[self._biased] += self._biases
        if self._count < params.min_tokens:
            row[list(self.late)] = -np.inf
        latest = tuple(self._latest)
        for before_last in (None, *latest[-1:]):
            for word in self._bad_words.get(before_last, ()):
                before = len(word) - 1
                if before <= len(latest) and word[:-1] == latest[len(latest) - before :]:
                    row[word[-1]] = -np.inf
