"""Model shapes with random weights, and a tokenizer that costs nothing."""

from collections.abc import Sequence

from engine.models.config import ModelConfig, rope_frequencies

SHAPES = {
    # Llama-3.1-8B and Qwen2.5-0.5B, without what does not change the amount of work
    "llama8b": ModelConfig(
        vocab_size=128256,
        hidden=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=14336,
        norm_eps=1e-5,
        max_len=8192,
        rope_frequencies=rope_frequencies(128, {"rope_theta": 500000.0}),
        tied=False,
    ),
    "qwen05b": ModelConfig(
        vocab_size=151936,
        hidden=896,
        layers=24,
        heads=14,
        kv_heads=2,
        head_dim=64,
        ffn=4864,
        norm_eps=1e-5,
        max_len=8192,
        rope_frequencies=rope_frequencies(64, {"rope_theta": 1000000.0}),
        tied=True,
    ),
}


class NoText:
    """Every token is the letter x: the benchmarks measure tokens."""

    eos_ids: frozenset[int] = frozenset()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        return [0] * len(text)

    def decode(self, ids: Sequence[int]) -> str:
        return "x" * len(ids)
