"""Shape and constants of a decoder of Llama's kind, and how positions rotate its keys."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal

import torch

from engine.errors import ModelError

_SIZES = ("vocab_size", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "max_len")
#: Ways to stretch a rotary embedding that `rope_frequencies` knows, besides none.
_SCALINGS = ("linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a decoder needs to know besides its weights.

    The first fields make a Llama; the others have defaults that change nothing, so `extras` names
    what a model has beyond one.

    Attributes:
        vocab_size, hidden, layers, heads, kv_heads, head_dim, ffn: sizes; `ffn` is the width inside
            the feed-forward block.
        norm_eps: added to the mean square in RMSNorm.
        max_len: most positions the model was made for.
        rope_frequencies: radians per position of each pair of head dimensions, scaling included.
            With fewer than head_dim / 2, the dimensions behind do not rotate.
        tied: the embedding table is also the output projection.
        rope_scale: what cosines and sines are multiplied with.
        short_rope_frequencies, short_len: frequencies of a model that is never given more than
            `short_len` positions, see `within`; () if they are the same.
        local_rope_frequencies: of layers with a window; () if they are the same.
        unrotated_layers: layers without rotary embedding.
        windows: of each layer, how many tokens a row sees, itself included; 0 is all. () if no
            layer has a window.
        activation: of the gate: x · sigmoid(x), or x · Φ(x) by its approximation with tanh.
        embedding_scale: what embeddings are multiplied with.
        score_scale: what products of queries and keys are multiplied with; None is 1/√head_dim.
        score_cap, logit_cap: scores and logits x become cap · tanh(x / cap); 0 leaves them.
        post_norms: what attention and feed-forward block give is normalised before it is added.
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
    rope_scale: float = 1.0
    short_rope_frequencies: tuple[float, ...] = ()
    short_len: int = 0
    local_rope_frequencies: tuple[float, ...] = ()
    unrotated_layers: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    activation: Literal["silu", "gelu_tanh"] = "silu"
    embedding_scale: float = 1.0
    score_scale: float | None = None
    score_cap: float = 0.0
    logit_cap: float = 0.0
    post_norms: bool = False

    def __post_init__(self) -> None:
        """Raise `ModelError` for sizes that do not fit together."""
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise ModelError(
                    f"the model's {name} is {getattr(self, name)}, it must be 1 or more"
                )
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} heads cannot share {self.kv_heads} KV heads evenly")
        if not 0 < 2 * len(self.rope_frequencies) <= self.head_dim:
            raise ModelError(
                f"rotary embedding of {2 * len(self.rope_frequencies)} of {self.head_dim} head "
                "dimensions is not supported"
            )
        for name in ("short_rope_frequencies", "local_rope_frequencies"):
            if getattr(self, name) and len(getattr(self, name)) != len(self.rope_frequencies):
                raise ModelError(
                    f"the model has {len(self.rope_frequencies)} rotary frequencies, "
                    f"but {len(getattr(self, name))} {name}"
                )
        if self.windows and (len(self.windows) != self.layers or min(self.windows) < 0):
            raise ModelError(f"windows {self.windows} are not one for each of {self.layers} layers")

    def extras(self) -> tuple[str, ...]:
        """Names of the fields in which the model is more than a Llama."""
        optional = [field for field in fields(self) if field.default is not MISSING]
        return tuple(f.name for f in optional if getattr(self, f.name) != f.default)

    def within(self, length: int | None) -> "ModelConfig":
        """The model for whom nothing is longer than `length` positions (None: than its own limit).

        LongRoPE has frequencies for short contexts, and others for all contexts of a model that is
        also given long ones: keys in the cache are rotated, so one model cannot use both.
        """
        length = min(length or self.max_len, self.max_len)
        short = self.short_rope_frequencies if length <= self.short_len else ()
        return replace(
            self,
            max_len=length,
            rope_frequencies=short or self.rope_frequencies,
            short_rope_frequencies=(),
            short_len=0,
        )

    def window(self, layer: int) -> int:
        """Tokens that a row of this layer sees, itself included; 0 is all."""
        return self.windows[layer] if self.windows else 0


def rope_frequencies(
    dim: int, rope: Mapping[str, Any], *, short: bool = False
) -> tuple[float, ...]:
    """Radians per position of each of `dim`/2 pairs of dimensions.

    Args:
        dim: dimensions that rotate.
        rope: `rope_theta` and, for a stretched context, `rope_type` ("linear", "llama3", "yarn",
            "longrope") with the fields it has in a `config.json`.
        short: of "longrope", the frequencies for contexts of the original length.

    Raises:
        ModelError: another kind of scaling, or a field is missing.
    """
    kind = _kind(rope)
    # In float32 and in this order of operations: at position 8000 a last bit here is visible in
    # text.
    periods = float(rope["rope_theta"]) ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    try:
        match kind:
            case "default":
                frequencies = 1.0 / periods
            case "linear":
                frequencies = 1.0 / periods / float(rope["factor"])
            case "llama3":
                frequencies = _llama3(1.0 / periods, rope)
            case "yarn":
                frequencies = _yarn(periods, rope)
            case _:
                factors = rope["short_factor" if short else "long_factor"]
                if len(factors) != len(periods):
                    raise ModelError(
                        f"rope scaling 'longrope' has {len(factors)} factors for {len(periods)} "
                        "pairs of head dimensions"
                    )
                frequencies = 1.0 / (torch.tensor(factors, dtype=torch.float32) * periods)
    except KeyError as error:
        raise ModelError(f"rope scaling {kind!r} has no {error.args[0]!r}") from error
    return tuple(frequencies.tolist())


def rope_scale(rope: Mapping[str, Any], max_len: int) -> float:
    """What cosines and sines are multiplied with; `max_len` is the stretched context's length."""
    kind = _kind(rope)
    if kind not in ("yarn", "longrope"):
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    original = float(rope["original_max_position_embeddings"])
    factor = float(rope.get("factor") or max_len / original)
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original))
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        above, below = (0.1 * float(rope[m]) * math.log(factor) + 1 for m in _MSCALES)
        return above / below
    return 0.1 * math.log(factor) + 1


_MSCALES = ("mscale", "mscale_all_dim")


def _kind(rope: Mapping[str, Any]) -> str:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default" and kind not in _SCALINGS:
        raise ModelError(f"rope scaling {kind!r} is not supported, only {', '.join(_SCALINGS)}")
    return str(kind)


def _llama3(frequencies: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    """Slow pairs are slowed by `factor`, fast ones kept, those between blended."""
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    wavelengths = 2 * torch.pi / frequencies
    blend = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / factor + blend * frequencies


def _yarn(periods: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    """As `_llama3`, blended linearly by the pair's number (YaRN, arXiv 2309.00071)."""
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    dim, theta = 2 * len(periods), float(rope["rope_theta"])

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_that_turns(float(rope.get("beta_fast") or 32))
    high = pair_that_turns(float(rope.get("beta_slow") or 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001
    slowed = ((torch.arange(dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return slowed / (factor * periods) + (1 - slowed) / periods
