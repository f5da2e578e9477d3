"""A model that says what a file tells it to: exact streams for tests and client developers."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from engine.decoding.sampling import Sampled
from engine.errors import ModelError
from engine.plan import StepPlan
from engine.prefixes import Prefix

if TYPE_CHECKING:
    from engine.chat import ChatFormat
    from engine.tokenizer import Tokenizer


class ScriptedModel:
    """Replies read from a JSON file: a list of token-id lists, one list per request, one token per
    step.

    Request n gets list n modulo their number, in order of submission, and ends with an end-of-
    sequence token. Everything but the forward pass is the real engine.

    Attributes:
        tokenizer, chat: of a real model, which give the ids their meaning.
        longest: tokens of the longest reply, its end included.
    """

    def __init__(
        self, replies: list[list[int]], tokenizer: "Tokenizer", chat: "ChatFormat"
    ) -> None:
        self.replies = replies
        self.tokenizer = tokenizer
        self.chat = chat
        self.longest = max(len(reply) for reply in replies) + 1

    @classmethod
    def load(cls, path: Path, tokenizer: "Tokenizer", chat: "ChatFormat") -> "ScriptedModel":
        """Read a script; raises `ModelError` saying what is wrong with the file."""
        try:
            replies = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"cannot read the script {path}: {error}") from error
        if not isinstance(replies, list) or not replies:
            raise ModelError(f"{path}: a script is a list of lists of token ids, with at least one")
        for number, reply in enumerate(replies):
            if not isinstance(reply, list) or any(
                type(token) is not int or not 0 <= token < tokenizer.vocab_size for token in reply
            ):
                raise ModelError(
                    f"{path}: reply {number} must be token ids below {tokenizer.vocab_size}"
                )
        return cls(replies, tokenizer, chat)


class ScriptedRunner:
    """Runs plans on a `ScriptedModel` at a fixed pace."""

    def __init__(self, model: ScriptedModel, step_ms: float) -> None:
        self._replies = model.replies
        self._end = min(model.tokenizer.eos_ids)
        self._pause_s = step_ms / 1000

    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `engine.runner.Runner.run`."""
        if self._pause_s:
            time.sleep(self._pause_s)
        tokens = []
        for share in plan.sequences:
            if share.sample:
                assert not isinstance(share.owner, Prefix)
                reply = self._replies[share.owner.id % len(self._replies)]
                said = share.owner.outputs
                tokens.append(Sampled(reply[said] if said < len(reply) else self._end))
        return tokens
