"""The encoder of BERT (Devlin et al. 2018): every token sees every other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from engine.errors import ModelError

#: A checkpoint's tensor by name and shape, in float32.
Source = Callable[[str, tuple[int, ...]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Sizes of an encoder.

    Attributes:
        vocab_size, hidden, layers, heads, ffn: as of a decoder.
        positions: longest text, in tokens.
        kinds: of segments; only the first is used.
        norm_eps: added to the variance in layer norms.
    """

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    ffn: int
    positions: int
    kinds: int
    norm_eps: float

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any]) -> "BertConfig":
        """Read the contents of a `config.json`.

        Raises:
            ModelError: a field is missing, or asks for something `Bert` does not compute.
        """
        for name, only in (
            ("model_type", "bert"),
            ("hidden_act", "gelu"),
            ("position_embedding_type", "absolute"),
        ):
            if fields.get(name, only) != only:
                raise ModelError(f"{name} {fields[name]!r} is not supported, only {only!r}")
        try:
            config = cls(
                vocab_size=int(fields["vocab_size"]),
                hidden=int(fields["hidden_size"]),
                layers=int(fields["num_hidden_layers"]),
                heads=int(fields["num_attention_heads"]),
                ffn=int(fields["intermediate_size"]),
                positions=int(fields["max_position_embeddings"]),
                kinds=int(fields.get("type_vocab_size", 2)),
                norm_eps=float(fields.get("layer_norm_eps", 1e-12)),
            )
        except KeyError as error:
            raise ModelError(f"the model's config.json has no {error.args[0]!r}") from error
        if config.heads < 1 or config.hidden % config.heads:
            raise ModelError(f"{config.heads} heads cannot share a width of {config.hidden}")
        return config


@dataclass(frozen=True, slots=True)
class _Affine:
    """A product with a bias, or a norm with gain and bias."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer. Q, K and V are one product."""

    qkv: _Affine
    attended: _Affine
    attention_norm: _Affine
    up: _Affine
    down: _Affine
    ffn_norm: _Affine


class Bert:
    """Token rows of whole texts into hidden states."""

    def __init__(self, config: BertConfig, source: Source) -> None:
        """Read all weights; `source` raises ModelError for what is missing or of another shape."""
        self.config = config
        hidden = config.hidden
        words = source("embeddings.word_embeddings.weight", (config.vocab_size, hidden))
        kinds = source("embeddings.token_type_embeddings.weight", (config.kinds, hidden))
        self._words = words
        # Texts are of one kind, whose vector goes with the positions.
        self._positions = (
            source("embeddings.position_embeddings.weight", (config.positions, hidden)) + kinds[0]
        )
        self._norm = _affine(source, "embeddings.LayerNorm", hidden)
        self._layers = tuple(_layer(config, source, number) for number in range(config.layers))

    @torch.inference_mode()
    def states(self, tokens: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Final hidden states.

        Args:
            tokens: int64 [texts, longest], padded with anything.
            present: bool [texts, longest], False where a text is padded.

        Returns:
            float32 [texts, longest, hidden]; rows that are not present mean nothing.
        """
        config = self.config
        texts, longest = tokens.shape
        x = self._normed(self._words[tokens] + self._positions[:longest], self._norm)
        visible = present[:, None, None, :]  # [texts, heads, queries, keys]
        for layer in self._layers:
            qkv = F.linear(x, layer.qkv.weight, layer.qkv.bias)
            q, k, v = qkv.view(texts, longest, 3, config.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            mixed = mixed.transpose(1, 2).reshape(texts, longest, config.hidden)
            mixed = F.linear(mixed, layer.attended.weight, layer.attended.bias)
            x = self._normed(x + mixed, layer.attention_norm)
            inner = F.gelu(F.linear(x, layer.up.weight, layer.up.bias))
            x = self._normed(
                x + F.linear(inner, layer.down.weight, layer.down.bias), layer.ffn_norm
            )
        return x

    def _normed(self, x: torch.Tensor, norm: _Affine) -> torch.Tensor:
        return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, self.config.norm_eps)


def _layer(config: BertConfig, source: Source, number: int) -> _Layer:
    hidden, ffn, prefix = config.hidden, config.ffn, f"encoder.layer.{number}"
    parts = [
        _affine(source, f"{prefix}.attention.self.{part}", hidden, hidden)
        for part in ("query", "key", "value")
    ]
    return _Layer(
        qkv=_Affine(torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts])),
        attended=_affine(source, f"{prefix}.attention.output.dense", hidden, hidden),
        attention_norm=_affine(source, f"{prefix}.attention.output.LayerNorm", hidden),
        up=_affine(source, f"{prefix}.intermediate.dense", ffn, hidden),
        down=_affine(source, f"{prefix}.output.dense", hidden, ffn),
        ffn_norm=_affine(source, f"{prefix}.output.LayerNorm", hidden),
    )


def _affine(source: Source, name: str, *shape: int) -> _Affine:
    return _Affine(source(f"{name}.weight", shape), source(f"{name}.bias", shape[:1]))
