"""Reads GGUF files: everything is inside, and tensors are stored in many quantised types."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from engine.errors import ModelError
from engine.models.config import ModelConfig, rope_frequencies
from engine.tokenizer import Tokenizer

#: Architectures `Decoder` computes, and whether llama.cpp's converter reordered their Q and K rows.
_ARCHITECTURES = {"llama": True, "qwen2": False, "qwen3": False}

#: Hub name of a tensor -> GGUF name, outside of layers and inside one.
_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


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
        self._architecture = str(self.metadata.get("general.architecture"))
        if self._architecture not in _ARCHITECTURES:
            raise ModelError(
                f"{path} holds a {self._architecture!r} model, "
                f"only {', '.join(_ARCHITECTURES)} are supported"
            )
        self.name = str(self.metadata.get("general.name") or path.stem)
        self.config = self._config()
        template = self.metadata.get("tokenizer.chat_template")
        self.template = None if template is None else str(template)

    def tokenizer(self) -> Tokenizer:
        """See `Checkpoint.tokenizer`."""
        return Tokenizer.from_gguf(self.metadata)

    def __contains__(self, name: str) -> bool:
        return _gguf_name(name) in self._tensors

    def tensor(self, name: str) -> torch.Tensor:
        """See `Checkpoint.tensor`."""
        stored = self._tensors.get(_gguf_name(name))
        if stored is None:
            raise ModelError(f"{self.source} has no tensor {_gguf_name(name)!r}")
        try:
            values = gguf.dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.source} stores {stored.name!r} as {stored.tensor_type.name}, "
                "which cannot be read"
            ) from error
        tensor = torch.from_numpy(np.array(values, dtype=np.float32))
        if _ARCHITECTURES[self._architecture]:
            if "q_proj" in name:
                return _unpermute(tensor, self.config.heads)
            if "k_proj" in name:
                return _unpermute(tensor, self.config.kv_heads)
        return tensor

    def _config(self) -> ModelConfig:
        def field(key: str, default: Any = None) -> Any:
            value = self.metadata.get(f"{self._architecture}.{key}", default)
            if value is None:
                raise ModelError(f"{self.source} has no {self._architecture}.{key}")
            return value

        heads, hidden = int(field("attention.head_count")), int(field("embedding_length"))
        head_dim = int(field("attention.key_length", hidden // heads))
        kind = field("rope.scaling.type", "none")
        rope = {
            "rope_theta": field("rope.freq_base", 10000.0),
            "rope_type": "default" if kind == "none" else kind,
            "factor": field("rope.scaling.factor", 1.0),
        }
        frequencies = rope_frequencies(int(field("rope.dimension_count", head_dim)), rope)
        if (divisors := self._tensors.get("rope_freqs.weight")) is not None:
            # Llama 3's scaling, worked out by the converter.
            frequencies = tuple((torch.tensor(frequencies) / torch.tensor(divisors.data)).tolist())
        return ModelConfig(
            vocab_size=len(self.metadata.get("tokenizer.ggml.tokens", ())),
            hidden=hidden,
            layers=int(field("block_count")),
            heads=heads,
            kv_heads=int(field("attention.head_count_kv", heads)),
            head_dim=head_dim,
            ffn=int(field("feed_forward_length")),
            norm_eps=float(field("attention.layer_norm_rms_epsilon")),
            max_len=int(field("context_length")),
            rope_frequencies=frequencies,
            tied="output.weight" not in self._tensors,
        )


def _gguf_name(name: str) -> str:
    """GGUF's name of a hub tensor."""
    stem, kind = name.rsplit(".", 1)
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    layer, inner = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_INNER[inner]}.{kind}"


def _unpermute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of a head's rows: it rotates neighbours, the hub's layout rotates
    halves.
    """
    pairs = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
