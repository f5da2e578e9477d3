"""How a reply is sampled and when it ends."""

import math
from dataclasses import dataclass

from engine.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping of one request; the names mean what vLLM users expect.

    Attributes:
        max_tokens: most tokens to generate, >= 1.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set whose probability reaches p, in (0, 1].
        min_p: drop tokens less likely than min_p times the most likely one, in [0, 1].
        repetition_penalty: > 1 makes tokens of prompt and output less likely (Keskar et al. 2019).
        seed: same seed, prompt and parameters give the same tokens; None draws one.
        stop: the text ends before the first of these strings; none of their characters are
            released.
        ignore_eos: go on after an end-of-sequence token (benchmarks).
        sentence_after: once this many tokens are out, end at the next end of a sentence;
            None never ends a reply that way.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    sentence_after: int | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` naming the first field that is out of range."""

        def need(ok: bool, field: str, rule: str) -> None:
            if not ok:
                raise InvalidRequest(f"{field} must be {rule}, not {getattr(self, field)!r}")

        for field in ("temperature", "top_p", "min_p", "repetition_penalty"):
            value = getattr(self, field)
            need(isinstance(value, (int, float)) and math.isfinite(value), field, "a finite number")
        for field in ("max_tokens", "top_k"):
            need(type(getattr(self, field)) is int, field, "an integer")
        need(self.max_tokens >= 1, "max_tokens", "at least 1")
        need(self.temperature >= 0, "temperature", "0 or more")
        need(self.top_k >= 0, "top_k", "0 (all) or more")
        need(0 < self.top_p <= 1, "top_p", "in (0, 1]")
        need(0 <= self.min_p <= 1, "min_p", "in [0, 1]")
        need(self.repetition_penalty > 0, "repetition_penalty", "above 0")
        need(
            self.seed is None or (type(self.seed) is int and 0 <= self.seed < 2**63),
            "seed",
            "None or an integer in [0, 2**63)",
        )
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        else:
            object.__setattr__(self, "stop", tuple(self.stop))
        need(all(isinstance(s, str) and s for s in self.stop), "stop", "non-empty strings")
        need(
            self.sentence_after is None or self.sentence_after >= 0,
            "sentence_after",
            "None or 0 or more",
        )
