"""Shape and constants of a Llama-type decoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import ModelError

#: Model types of the Hugging Face hub whose layers are all of the one shape `Decoder` computes.
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a decoder needs to know besides its weights.

    Attributes:
        vocab_size, hidden, layers, heads, kv_heads, head_dim, ffn: sizes; `ffn` is the width inside
            the feed-forward block.
        norm_eps: added to the mean square in RMSNorm.
        max_len: most positions the model was made for.
        rope_frequencies: radians per position of each pair of head dimensions, scaling included.
        tied: the embedding table is also the output projection.
    """

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    norm_eps: float
    max_len: int
    rope_frequencies: tuple[float, ...]
    tied: bool

    def __post_init__(self) -> None:
        """Raise `ModelError` for sizes that do not fit together."""
        for name in (
            "vocab_size",
            "hidden",
            "layers",
            "heads",
            "kv_heads",
            "head_dim",
            "ffn",
            "max_len",
        ):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"the model's {name} is {getattr(self, name)}, it must be 1 or more"
                )
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} heads cannot share {self.kv_heads} KV heads evenly")
        if 2 * len(self.rope_frequencies) != self.head_dim:
            raise ModelError(
                f"rotary embedding of {2 * len(self.rope_frequencies)} of {self.head_dim} head "
                "dimensions is not supported"
            )

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any]) -> "ModelConfig":
        """Read the contents of a `config.json`.

        Raises:
            ModelError: a field is missing, or asks for something `Decoder` does not compute.
        """
        kind = fields.get("model_type")
        if kind not in _LLAMA_LIKE:
            raise ModelError(
                f"models of type {kind!r} are not supported, only {', '.join(_LLAMA_LIKE)}"
            )
        if fields.get("quantization_config"):
            raise ModelError(
                "quantised safetensors are not supported; use the original or a GGUF file"
            )
        if fields.get("hidden_act", "silu") != "silu":
            raise ModelError(f"activation {fields['hidden_act']!r} is not supported, only 'silu'")
        try:
            heads, hidden = int(fields["num_attention_heads"]), int(fields["hidden_size"])
            head_dim = int(fields.get("head_dim") or hidden // heads)
            max_len = int(fields["max_position_embeddings"])
            # Inside its window a windowed model is an ordinary one.
            if (window := fields.get("sliding_window")) and fields.get("use_sliding_window", True):
                max_len = min(max_len, int(window))
            rope = fields.get("rope_parameters") or {
                "rope_theta": fields.get("rope_theta", 10000.0),
                **(fields.get("rope_scaling") or {}),
            }
            return cls(
                vocab_size=int(fields["vocab_size"]),
                hidden=hidden,
                layers=int(fields["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(fields.get("num_key_value_heads") or heads),
                head_dim=head_dim,
                ffn=int(fields["intermediate_size"]),
                norm_eps=float(fields["rms_norm_eps"]),
                max_len=max_len,
                rope_frequencies=rope_frequencies(head_dim, rope),
                tied=bool(fields.get("tie_word_embeddings", False)),
            )
        except KeyError as error:
            raise ModelError(f"the model's config.json has no {error.args[0]!r}") from error


def rope_frequencies(head_dim: int, rope: Mapping[str, Any]) -> tuple[float, ...]:
    """Radians per position of each of the `head_dim`/2 pairs.

    Args:
        head_dim: dimensions that rotate. rope: `rope_theta` and, for a stretched context,
        `rope_type` ("linear", "llama3") with its fields.

    Raises:
        ModelError: another kind of scaling, or a field is missing.
    """
    kind = rope.get("rope_type") or rope.get("type") or "default"
    # In float32 and in this order of operations: at position 8000 a last bit here is visible in
    # text.
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (float(rope["rope_theta"]) ** steps)
    try:
        if kind == "linear":
            frequencies = frequencies / float(rope["factor"])
        elif kind == "llama3":
            frequencies = _llama3(frequencies, rope)
        elif kind != "default":
            raise ModelError(f"rope scaling {kind!r} is not supported, only 'linear' and 'llama3'")
    except KeyError as error:
        raise ModelError(f"rope scaling {kind!r} has no {error.args[0]!r}") from error
    return tuple(frequencies.tolist())


def _llama3(frequencies: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    """Slow pairs are slowed by `factor`, fast ones kept, those between blended."""
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    wavelengths = 2 * torch.pi / frequencies
    blend = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / factor + blend * frequencies
