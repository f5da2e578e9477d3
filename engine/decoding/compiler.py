"""Compiles grammars for one model's tokens, within bounds, and keeps the recent ones."""

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.decoding.constraint import Banned, Constraint, complaint, mask_of
from engine.errors import InvalidRequest
from engine.grammar import Grammar, options_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from engine.params import SamplingParams
    from engine.tokenizer import Tokenizer

#: Compiled grammars that are kept; a server has few, and clients that make up new ones must not
#: fill its memory.
_KEPT = 64
#: The compiler follows chains of definitions by recursion, in native code: beyond the stack the
#: process would die. The pages of a stack are only taken when touched.
_STACK_BYTES = 256 << 20
#: Most threads that make masks.
_MOST_WORKERS = 8
#: JSON may be laid out in lines, but not endlessly: models of few words love white space.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,40}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar for one vocabulary.

    Attributes:
        matcher: at the beginning, never moved.
        first: mask of the first token, bool [vocab].
    """

    matcher: "LLMatcher"
    first: Banned


@dataclass(slots=True)
class _Compilation:
    """A grammar that was asked for, and how many wait for it."""

    result: "Future[Compiled | str]"
    waiting: int = 0


class GrammarCompiler:
    """Grammars in, constraints out. Its methods may be called from any thread.

    Nothing is loaded, and no thread started, before the first grammar.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._known: OrderedDict[Grammar, _Compilation] = OrderedDict()
        self._compilers: Executor | None = None
        self._workers: Executor | None = None
        self._vocabulary: LLTokenizer | None = None

    @contextmanager
    def compiling(self, grammar: Grammar) -> "Iterator[Future[Compiled | str]]":
        """Compile a grammar in a thread, or find it; the result may be what is wrong with it.

        All who ask for a grammar share the future, so nobody may cancel it. One that all have left
        before its turn came is not compiled.
        """
        with self._lock:
            job = self._known.get(grammar)
            if job is None:
                result = self._threads()[0].submit(self._compile, grammar)
                job = self._known[grammar] = _Compilation(result)
                if len(self._known) > _KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(grammar)
            job.waiting += 1
        try:
            yield job.result
        finally:
            with self._lock:
                job.waiting -= 1
                unwanted = not job.waiting and job.result.cancel()
                if unwanted and self._known.get(grammar) is job:
                    del self._known[grammar]

    def check(self, grammar: Grammar) -> Compiled:
        """A grammar compiled; waits for it.

        Raises:
            InvalidRequest: it cannot be compiled within the bounds, or no text matches it.
        """
        with self.compiling(grammar) as result:
            compiled = result.result()
        if isinstance(compiled, str):
            raise InvalidRequest(f"{grammar.kind} cannot be followed: {compiled}")
        return compiled

    def constrain(self, params: "SamplingParams") -> Constraint | None:
        """What holds a new reply to its grammar, if it has one; raises as `check` does."""
        if params.grammar is None:
            return None
        compiled = self.check(params.grammar)
        vocabulary = self._vocabulary
        assert vocabulary is not None

        def is_whole(text: str) -> bool:
            copy = compiled.matcher.deep_copy()
            return copy.consume_tokens(vocabulary.tokenize_str(text)) and copy.is_accepting()

        return Constraint(
            compiled.matcher.deep_copy(),
            compiled.first,
            self._threads()[1],
            ends=np.array(sorted(self._tokenizer.eos_ids), np.int64),
            endless=params.ignore_eos,
            spell=lambda token: vocabulary.decode_bytes([token]),
            is_whole=is_whole,
        )

    def _threads(self) -> tuple[Executor, Executor]:
        """Who compiles and who makes masks: a slow compilation must not delay replies."""
        if self._compilers is None or self._workers is None:
            self._compilers = ThreadPoolExecutor(1, "grammar-compiler")
            size = threading.stack_size(_STACK_BYTES)
            try:
                self._compilers.submit(int).result()  # starts the thread
            finally:
                threading.stack_size(size)
            workers = min(max((os.cpu_count() or 1) // 2, 1), _MOST_WORKERS)
            self._workers = ThreadPoolExecutor(workers, "grammar-masks")
        return self._compilers, self._workers

    def _compile(self, grammar: Grammar) -> Compiled | str:
        try:
            return self._compiled(grammar)
        except BaseException as error:  # a panic of the native code is no Exception
            return f"{type(error).__name__}: {error}"

    def _compiled(self, grammar: Grammar) -> Compiled | str:
        # Imported here: few processes need it.
        from llguidance import LLMatcher

        if not self._tokenizer.eos_ids:
            return "the model has no end-of-sequence token, which says that a reply is whole"
        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer)
        matcher = LLMatcher(self._vocabulary, _definition(grammar), log_level=0, limits=_limits())
        if matcher.is_error():
            return complaint(matcher)
        first = matcher.deep_copy()
        banned = mask_of(first, self._tokenizer.vocab_size)
        if first.is_error() or banned.all():
            return f"no text matches it, or it is too complex ({complaint(first)})"
        return Compiled(matcher, banned)


class _PlainTokens:
    """The tokens of a vocabulary by their bytes, control tokens as nothing.

    Where a grammar leaves no choice its text is cut into tokens, and text that spells a control
    token must not become one. The names are llguidance's.
    """

    def __init__(self, tokenizer: "Tokenizer", tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = None
        self.special_token_ids: list[int] = []
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        """Ids of a text in UTF-8."""
        return self._tokenizer.encode(text.decode("utf-8", "replace"))


def _vocabulary(tokenizer: "Tokenizer") -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    # It knows how each kind of tokenizer spells bytes.
    reader = LLTokenizer(
        tokenizer.serialized(), n_vocab=tokenizer.vocab_size, eos_token=min(tokenizer.eos_ids)
    )
    hidden = tokenizer.special_ids | tokenizer.eos_ids
    tokens = [
        b"" if token in hidden else reader.decode_bytes([token])
        for token in range(tokenizer.vocab_size)
    ]
    return LLTokenizer(
        TokenizerWrapper(_PlainTokens(tokenizer, tokens)),
        n_vocab=tokenizer.vocab_size,
        eos_token=sorted(tokenizer.eos_ids),
    )


def _definition(grammar: Grammar) -> str:
    """A grammar in the notation of llguidance."""
    from llguidance import LLMatcher

    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(
                grammar.source, overrides={"whitespace_pattern": _WHITE_SPACE, "lenient": False}
            )
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "choice":
            literals = (json.dumps(option) for option in options_of(grammar))
            return LLMatcher.grammar_from_lark("start: " + " | ".join(literals))
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.source)


def _limits() -> "LLParserLimits":
    """Bounds of compiling (some hundred milliseconds) and of each mask (some ten)."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=20_000,  # some 40 MB in one reply
        max_grammar_size=50_000,
        verbose_errors=False,
    )
