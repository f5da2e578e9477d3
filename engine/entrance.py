"""What a request must be to be queued: checked by its caller, before anything is taken for it."""

from collections.abc import Sequence
from functools import lru_cache

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.decoding.compiler import GrammarCompiler
from engine.decoding.penalties import LogitChanges
from engine.errors import ContextExceeded, InvalidRequest
from engine.memory import no_room
from engine.params import SamplingParams
from engine.pooling import Pooling
from engine.prefixes import Prefix
from engine.sliding import Sliding
from engine.tokenizer import Tokenizer

#: Lists of bad words whose spellings are kept. A request of many samples asks once for each.
_KEPT_LISTS = 16


class Entrance:
    """Looks requests over. Its methods change nothing and may be called from any thread.

    Args:
        tokenizer: of the model.
        pool: where KV will lie; only its sizes are looked at.
        config: limits.
        max_model_len: most tokens of prefix, prompt and output that are in the cache together.
        grammars: compiles what replies are to be held to.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        pool: BlockPool,
        config: EngineConfig,
        max_model_len: int,
        grammars: GrammarCompiler,
    ) -> None:
        self._tokenizer = tokenizer
        self._pool = pool
        self._config = config
        self._sliding = Sliding.of(config)
        self._max_model_len = max_model_len
        self._grammars = grammars
        self._spellings = lru_cache(_KEPT_LISTS)(self._spelt)

    def token_ids(self, given: Sequence[int], what: str) -> tuple[int, ...]:
        """Token ids as a tuple; `what` they are, for the message.

        Raises:
            InvalidRequest: there are none, or some are outside the vocabulary.
        """
        ids = tuple(given)
        if not ids:
            raise InvalidRequest(f"{what} needs at least one token")
        size = self._tokenizer.vocab_size
        for token in ids:
            if type(token) is not int or not 0 <= token < size:
                raise InvalidRequest(f"{what} holds {token!r}, which is no token id below {size}")
        return ids

    def check(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        prefix: Prefix | None = None,
        priority: int = 1,
        pooling: Pooling | None = None,
    ) -> tuple[int, ...]:
        """The prompt as a tuple, if the request can ever run.

        Raises:
            InvalidRequest: no tokens, ids outside the vocabulary, a negative priority, more samples
                than may wait, or a grammar that cannot be followed.
            ContextExceeded: it can never fit.
        """
        ids = self.token_ids(prompt_ids, "a prompt")
        if params.n > self._config.max_waiting:
            raise InvalidRequest(f"n must be at most {self._config.max_waiting}, not {params.n}")
        if type(priority) is not int or priority < 0:
            raise InvalidRequest(f"priority must be 0 (most urgent) or more, not {priority!r}")
        kept = self._kept(ids, params, pooling)
        total = (prefix.total if prefix else 0) + kept
        if total > self._max_model_len:
            raise ContextExceeded(self._max_model_len, total)
        own = self._pool.blocks_for(kept)
        chain = sum(self._pool.blocks_for(n.length) for n in prefix.chain()) if prefix else 0
        if own + chain > self._pool.size:
            raise ContextExceeded(self._pool.size, own + chain, "prompt + max_tokens in blocks")
        if params.grammar is not None:
            self._grammars.check(params.grammar)
        for token in params.logit_bias:
            if not 0 <= token < self._tokenizer.vocab_size:
                raise InvalidRequest(f"logit_bias names {token}, which is no token id")
        return ids

    def check_room(
        self,
        ids: tuple[int, ...],
        params: SamplingParams,
        prefix: Prefix | None,
        pooling: Pooling | None,
        pinned: int,
    ) -> None:
        """Raise `NoRoom` if a request can never fit beside so many blocks that stay."""
        pool, chain = self._pool, prefix.chain() if prefix else []
        own = pool.blocks_for(self._kept(ids, params, pooling))
        own += sum(pool.blocks_for(node.length) for node in chain if not node.pins)
        if own > (left := pool.size - pinned):
            raise no_room(pool, own, left)

    def changes(
        self, ids: tuple[int, ...], params: SamplingParams, prefix: Prefix | None
    ) -> LogitChanges | None:
        """The penalties and bans that a reply begins with, if its parameters ask for any."""
        if not LogitChanges.needed(params):
            return None
        whole = (*(prefix.all_token_ids() if prefix else ()), *ids)
        return LogitChanges(
            params, whole, self._tokenizer.eos_ids, self._spellings(params.bad_words)
        )

    def _spelt(self, words: tuple[str, ...]) -> list[tuple[int, ...]]:
        """The ids of words, at the beginning of a word and within one."""
        encode = self._tokenizer.encode
        return sorted({tuple(encode(lead + word)) for word in words for lead in ("", " ")})

    def _kept(self, ids: tuple[int, ...], params: SamplingParams, pooling: Pooling | None) -> int:
        """Most own tokens whose KV a request keeps at a time."""
        if pooling is not None:
            return len(ids)
        kept = len(ids) + params.max_tokens
        return kept if self._sliding is None else self._sliding.of_own(kept)
