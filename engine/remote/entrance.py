"""What a request must be to be sent to a server: checked by its caller, before it waits."""

from collections.abc import Sequence

from engine.decoding.compiler import GrammarCompiler
from engine.errors import ContextExceeded, InvalidRequest
from engine.params import SamplingParams
from engine.prefixes import Prefix
from engine.remote.dialect import Dialect
from engine.tokenizer import Tokenizer


class RemoteEntrance:
    """Looks requests over; changes nothing.

    Args:
        tokenizer: that prompts are written with.
        dialect: what the servers understand.
        max_model_len: most tokens of prefix, prompt and output.
        grammars: compiles what replies are checked against.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dialect: Dialect,
        max_model_len: int,
        grammars: GrammarCompiler,
    ) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._dialect = dialect
        self._max_model_len = max_model_len
        self._grammars = grammars

    def token_ids(self, given: Sequence[int], what: str) -> tuple[int, ...]:
        """Token ids as a tuple; `what` they are, for the message.

        Raises:
            InvalidRequest: there are none, or some are outside the vocabulary.
        """
        ids = tuple(given)
        if not ids:
            raise InvalidRequest(f"{what} needs at least one token")
        if any(type(token) is not int or not 0 <= token < self._vocab_size for token in ids):
            raise InvalidRequest(f"{what} must hold token ids below {self._vocab_size}")
        return ids

    def check(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        prefix: Prefix | None,
        priority: int,
    ) -> tuple[int, ...]:
        """The prompt as a tuple, if servers can answer it.

        Raises:
            InvalidRequest: no tokens, ids outside the vocabulary, a negative priority, or something
                that these servers do not do.
            ContextExceeded: it can never fit.
        """
        ids = self.token_ids(prompt_ids, "a prompt")
        if type(priority) is not int or priority < 0:
            raise InvalidRequest(f"priority must be 0 (most urgent) or more, not {priority!r}")
        total = len(ids) + (prefix.total if prefix else 0) + params.max_tokens
        if total > self._max_model_len:
            raise ContextExceeded(self._max_model_len, total)
        if params.logprobs is not None:
            raise InvalidRequest("logprobs are not passed on from a remote server")
        if params.grammar is not None:
            kind = params.grammar.kind
            if kind not in self._dialect.ways:
                raise InvalidRequest(f"grammar: the remote server keeps to no {kind}")
            self._grammars.check(params.grammar)
        if not self._dialect.continues and self._dialect.begins(ids):
            raise InvalidRequest("the remote server does not go on with a reply that is begun")
        return ids
