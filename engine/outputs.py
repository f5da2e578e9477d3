"""What the engine says back: text as it appears, and the bill at the end."""

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from engine.errors import EngineError

FinishReason = Literal["stop", "length", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and times of one request.

    Attributes:
        prompt_tokens: all prompt tokens, shared prefixes included.
        cached_tokens: those this request did not have to compute (warmed, reused or joined in
            flight).
        completion_tokens: tokens generated.
        arrived, scheduled, first_token, finished: `time.monotonic()` seconds; None if never
            reached.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    arrived: float
    scheduled: float | None
    first_token: float | None
    finished: float

    @property
    def computed(self) -> int:
        """Tokens that were computed for this request."""
        return self.prompt_tokens - self.cached_tokens + self.completion_tokens


class RequestOutput(msgspec.Struct, frozen=True, gc=False):
    """What one engine step released for one request.

    Attributes:
        request_id: which request.
        text: new text only, whole characters, nothing that may still become a stop string.
        token_ids: new tokens only (their text may still be held back).
        finish: None while running; set exactly once, in the last output.
        usage: set with `finish`.
        error: what went wrong when `finish` is "failed".
        refusal: the same as an exception where the caller can act on it.
        logprobs: for each of `token_ids`, log-probabilities by token id, if asked for.
        complete: set with `finish` for a request with a grammar: whether the whole text is a text
            of the grammar. With "length" one that is may still have had more to say.
        embedding: float32 [hidden], of a request for one; set with `finish`.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    usage: Usage | None = None
    error: str | None = None
    refusal: EngineError | None = None
    logprobs: tuple[dict[int, float], ...] | None = None
    complete: bool | None = None
    embedding: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """What a text means, as a vector.

    Attributes:
        vector: float32 [hidden].
        prompt_tokens: tokens that were read for it.
    """

    vector: npt.NDArray[np.float32]
    prompt_tokens: int

    @classmethod
    def of(cls, output: RequestOutput) -> "Embedding":
        """The embedding in a request's last output; raises EngineError if the request failed."""
        if output.embedding is None or output.usage is None:
            raise EngineError(output.error or f"the text was not read: {output.finish}")
        return cls(output.embedding, output.usage.prompt_tokens)
