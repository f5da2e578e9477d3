"""Model shapes with random weights, and a tokenizer that costs nothing.

python -m benchmarks.shapes llama8b folder     # the shape as other engines read it
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

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


def hub_config(shape: ModelConfig) -> dict[str, object]:
    """A shape as the config.json of a Llama, for engines that make up the weights themselves."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_len,
        "rms_norm_eps": shape.norm_eps,
        # The rotation's base does not change the amount of work.
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "tie_word_embeddings": shape.tied,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


class NoText:
    """A character is a token, and every token says x: the benchmarks measure tokens."""

    eos_ids: frozenset[int] = frozenset()
    concatenates = True

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        return [ord(character) % self.vocab_size for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "x" * len(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(hub_config(SHAPES[a.shape]), indent=2)
    (a.folder / "config.json").write_text(config + "\n")


if __name__ == "__main__":
    main()
