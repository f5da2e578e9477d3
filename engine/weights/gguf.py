"""Reads GGUF files: everything is inside, and tensors are stored in many quantised types."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from engine.errors import ModelError
from engine.models.config import ModelConfig
from engine.models.hub import REQUIRED, read_config
from engine.tokenizer import Tokenizer
from engine.weights.fused import part


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How llama.cpp keeps a family's models.

    Attributes:
        model_type: its name on the hub.
        arch: its number in the library, which knows the names of its tensors.
        permuted: whether the converter reordered the rows of Q and K.
        fused: whether Q, K and V are one tensor, and gate and up another.
        wide_queries: number of layers of the one size whose scores are scaled by hidden / heads
            instead of head_dim.
    """

    model_type: str
    arch: gguf.MODEL_ARCH
    permuted: bool = False
    fused: bool = False
    wide_queries: int = 0


_ARCHITECTURES = {
    "llama": _Architecture("llama", gguf.MODEL_ARCH.LLAMA, permuted=True),
    "qwen2": _Architecture("qwen2", gguf.MODEL_ARCH.QWEN2),
    "qwen3": _Architecture("qwen3", gguf.MODEL_ARCH.QWEN3),
    "smollm3": _Architecture("smollm3", gguf.MODEL_ARCH.SMOLLM3, permuted=True),
    "phi3": _Architecture("phi3", gguf.MODEL_ARCH.PHI3, fused=True),
    "gemma": _Architecture("gemma", gguf.MODEL_ARCH.GEMMA),
    "gemma2": _Architecture("gemma2", gguf.MODEL_ARCH.GEMMA2, wide_queries=46),
    "gemma3": _Architecture("gemma3_text", gguf.MODEL_ARCH.GEMMA3, wide_queries=62),
}
#: Hub name of a field -> GGUF's, where both mean the same.
_FIELDS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
}
_SCALING = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
#: Tensors that belong to the shape.
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class GGUFCheckpoint:
    """One GGUF file, memory-mapped; a tensor is dequantised when asked for.

    Attributes:
        source: the file.
        metadata: its key-value part.
        name, config, template: see `Checkpoint`.
    """

    def __init__(self, path: Path) -> None:
        """Open a file; raises `ModelError` when it is none, or holds an unsupported model."""
        self.source = path
        try:
            reader = gguf.GGUFReader(path)
            self.metadata: Mapping[str, Any] = {
                key: field.contents() for key, field in reader.fields.items()
            }
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelError(f"cannot read the GGUF file {path}: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._kind = str(self.metadata.get("general.architecture"))
        if self._kind not in _ARCHITECTURES:
            raise ModelError(
                f"{path} holds a {self._kind!r} model, "
                f"only {', '.join(_ARCHITECTURES)} are supported"
            )
        self._architecture = _ARCHITECTURES[self._kind]
        self.name = str(self.metadata.get("general.name") or path.stem)
        self.config = self._config()
        self._names = gguf.get_tensor_name_map(self._architecture.arch, self.config.layers)
        self._read: set[str] = set()
        template = self.metadata.get("tokenizer.chat_template")
        self.template = None if template is None else str(template)

    def tokenizer(self) -> Tokenizer:
        """See `Checkpoint.tokenizer`."""
        return Tokenizer.from_gguf(self.metadata)

    def __contains__(self, name: str) -> bool:
        return self._stored_name(name) in self._tensors

    def tensor(self, name: str) -> torch.Tensor:
        """See `Checkpoint.tensor`."""
        stored_name = self._stored_name(name)
        stored = self._tensors.get(stored_name)
        if stored is None:
            raise ModelError(f"{self.source} has no tensor {stored_name!r}")
        self._read.add(stored_name)
        try:
            values = gguf.dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.source} stores {stored.name!r} as {stored.tensor_type.name}, "
                "which cannot be read"
            ) from error
        tensor = torch.from_numpy(np.array(values, dtype=np.float32))
        if self._architecture.permuted and "q_proj" in name:
            return _unpermute(tensor, self.config.heads)
        if self._architecture.permuted and "k_proj" in name:
            return _unpermute(tensor, self.config.kv_heads)
        fused = part(name, self.config) if self._architecture.fused else None
        return fused.of(tensor) if fused else tensor

    def unread(self) -> list[str]:
        """See `Checkpoint.unread`."""
        return sorted(self._tensors.keys() - self._read - set(_ROPE_TENSORS))

    def _stored_name(self, name: str) -> str:
        """GGUF's name of a hub tensor, or of the one it is a part of; the hub's if it has none."""
        fused = part(name, self.config) if self._architecture.fused else None
        stem, kind = (fused.whole if fused else name).rsplit(".", 1)
        return f"{self._names.get_name(stem) or stem}.{kind}"

    def _config(self) -> ModelConfig:
        """The shape, read as if its fields stood in a `config.json`."""

        def field(key: str) -> Any:
            return self.metadata.get(f"{self._kind}.{key}")

        if field("expert_count"):
            raise ModelError(f"{self.source} is a mixture of experts, which is not supported")
        fields: dict[str, Any] = {
            hub: field(key) for hub, key in _FIELDS.items() if field(key) is not None
        }
        if missing := [_FIELDS[hub] for hub in REQUIRED if hub in _FIELDS and hub not in fields]:
            raise ModelError(f"{self.source} has no {self._kind}.{missing[0]}")
        wide = fields["num_hidden_layers"] == self._architecture.wide_queries
        per_head = fields["hidden_size"] // fields["num_attention_heads"]
        head_dim = int(fields.get("head_dim") or per_head)
        config = read_config(
            fields
            | {
                "model_type": self._architecture.model_type,
                "vocab_size": len(self.metadata.get("tokenizer.ggml.tokens", ())),
                "tie_word_embeddings": "output.weight" not in self._tensors,
                "query_pre_attn_scalar": per_head if wide else head_dim,
                "rope_scaling": self._rope_scaling(field),
                "partial_rotary_factor": (field("rope.dimension_count") or head_dim) / head_dim,
            }
        )
        divisors = self._tensors.get("rope_freqs.weight")
        if divisors is None:
            return config
        # Llama 3's scaling, worked out by the converter.
        plain = torch.tensor(config.rope_frequencies)
        scaled = (plain / torch.tensor(divisors.data)).tolist()
        return replace(config, rope_frequencies=tuple(scaled))

    def _rope_scaling(self, field: Callable[[str], Any]) -> dict[str, Any]:
        kind = field("rope.scaling.type") or "none"
        scaling = {hub: field(key) for hub, key in _SCALING.items() if field(key) is not None}
        if "rope_factors_long.weight" in self._tensors:
            kind = "longrope"
            for name in ("long", "short"):
                factors = self._tensors[f"rope_factors_{name}.weight"].data
                scaling[f"{name}_factor"] = factors.tolist()
        return {"rope_type": "default" if kind == "none" else kind, **scaling}


def _unpermute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of a head's rows: it rotates neighbours, the hub's layout rotates
    halves.
    """
    pairs = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
