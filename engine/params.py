"""How a reply is sampled and when it ends."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from engine.errors import InvalidRequest
from engine.grammar import Grammar

#: What the numbers that change logits are computed in ends here.
_LARGEST = 3.4e38


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping of one request; the names mean what vLLM users expect.

    Attributes:
        max_tokens: most tokens to generate, >= 1.
        min_tokens: no end of sequence and no stop string ends the reply before this many.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set whose probability reaches p, in (0, 1].
        min_p: drop tokens less likely than min_p times the most likely one, in [0, 1].
        repetition_penalty: > 1 makes tokens of prompt and output less likely (Keskar et al. 2019).
        presence_penalty: subtracted once from the logit of every token of the output so far.
        frequency_penalty: subtracted as often as the token stands in the output so far.
        logit_bias: added to the logits of these tokens.
        bad_words: strings that are never completed, at the start of a word or within one.
        seed: same seed, prompt and parameters give the same tokens; None draws one.
        n: samples of the same prompt; they share its KV.
        logprobs: how many of the most likely tokens to report for each step, beside the chosen one;
            None reports nothing.
        stop: the text ends before the first of these strings; none of their characters are
            released.
        ignore_eos: go on after an end-of-sequence token (benchmarks).
        sentence_after: once this many tokens are out, end at the next end of a sentence;
            None never ends a reply that way.
        grammar: what the reply may say; None leaves it free. A grammar has the last word: other
            fields are followed only where that leaves a text of the grammar, see `docs/api.md`.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    bad_words: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    sentence_after: int | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` naming the first field that is out of range."""
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            self._need(isinstance(value, Iterable), name, "a string or several")
            strings = (value,) if isinstance(value, str) else tuple(value)
            object.__setattr__(self, name, strings)
            self._need(all(isinstance(s, str) and s for s in strings), name, "non-empty strings")
        for name, lowest, highest in (
            ("temperature", 0, math.inf),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("repetition_penalty", 0, math.inf),
            ("presence_penalty", -2, 2),
            ("frequency_penalty", -2, 2),
        ):
            value = getattr(self, name)
            self._need(
                _is_number(value) and lowest <= value <= highest, name, f"in [{lowest}, {highest}]"
            )
        for name in ("top_p", "repetition_penalty"):
            self._need(getattr(self, name) > 0, name, "above 0")
        for name, least in (("max_tokens", 1), ("min_tokens", 0), ("top_k", 0), ("n", 1)):
            value = getattr(self, name)
            self._need(type(value) is int and value >= least, name, f"an integer from {least} on")
        for name, limit in (("seed", 2**63 - 1), ("logprobs", 100), ("sentence_after", 2**31)):
            value = getattr(self, name)
            if value is not None:
                within = type(value) is int and 0 <= value <= limit
                self._need(within, name, f"None or an integer in [0, {limit}]")
        self._need(self.min_tokens <= self.max_tokens, "min_tokens", "at most max_tokens")
        self._need(type(self.ignore_eos) is bool, "ignore_eos", "True or False")
        free = self.grammar is None
        self._need(free or isinstance(self.grammar, Grammar), "grammar", "None or a Grammar")
        self._need(isinstance(self.logit_bias, Mapping), "logit_bias", "numbers by token id")
        biases = self.logit_bias.items()
        self._need(
            all(type(token) is int and _is_number(bias) for token, bias in biases),
            "logit_bias",
            "finite numbers by token id",
        )

    def _need(self, ok: bool, name: str, rule: str) -> None:
        if not ok:
            raise InvalidRequest(f"{name} must be {rule}, not {getattr(self, name)!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= _LARGEST
