"""Reads the `config.json` of a Hugging Face folder: each family's shape, as transformers has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import ModelError
from engine.models.config import ModelConfig, rope_frequencies, rope_scale

#: What families call the activations there are.
_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
#: No size of any model comes near; whatever is larger is a mistake, and would take for ever.
_LARGEST = 1 << 24
#: Fields without which there is no shape.
REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "rms_norm_eps",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class _Family:
    """What models of one type have in common, and what their files leave out.

    Attributes:
        windows: which layers have the `sliding_window`, unless `layer_types` says it.
        tied, theta: defaults.
        gemma: which Gemma it is.
        partial: whether a part of a head may go unrotated.
    """

    windows: Literal["none", "all", "late", "unrotated", "most"] = "none"
    tied: bool = False
    theta: float = 10000.0
    gemma: int = 0
    partial: bool = False


FAMILIES = {
    "llama": _Family(),
    "mistral": _Family("all"),
    "qwen2": _Family("late"),
    "qwen3": _Family("late"),
    "smollm3": _Family("unrotated", tied=True, theta=2e6),
    "phi3": _Family("all", partial=True),
    "gemma": _Family(tied=True, gemma=1),
    "gemma2": _Family("most", tied=True, gemma=2),
    "gemma3_text": _Family("most", tied=True, theta=1e6, gemma=3),
}


def read_config(fields: Mapping[str, Any]) -> ModelConfig:
    """The shape that the contents of a `config.json` describe.

    Raises:
        ModelError: a field is missing, or asks for something `Decoder` does not compute.
    """
    kind = fields.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        raise ModelError(f"models of type {kind!r} are not supported, only {', '.join(FAMILIES)}")
    _refuse_unsupported(fields, family)
    for name in REQUIRED:
        if name not in fields:
            raise ModelError(f"the model's config.json has no {name!r}")
    try:
        return _read(fields, family)
    except KeyError as error:
        raise ModelError(f"the model's config.json has no {error.args[0]!r}") from error
    except (TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise ModelError(f"the model's config.json cannot be understood: {error}") from error


def _refuse_unsupported(fields: Mapping[str, Any], family: _Family) -> None:
    """Raise for what would otherwise be computed wrongly."""
    if fields.get("quantization_config"):
        raise ModelError("quantised safetensors are not supported; use the original or a GGUF file")
    if fields.get("use_bidirectional_attention"):
        raise ModelError("use_bidirectional_attention is not supported, only causal attention")
    if family.gemma == 3 and fields.get("attn_logit_softcapping"):
        raise ModelError("attn_logit_softcapping of a gemma3_text model is not supported")


def _read(fields: Mapping[str, Any], family: _Family) -> ModelConfig:
    heads, hidden = _size(fields, "num_attention_heads"), _size(fields, "hidden_size")
    layers = _size(fields, "num_hidden_layers")
    head_dim = _size(fields, "head_dim") if fields.get("head_dim") else hidden // heads
    max_len = _size(fields, "max_position_embeddings")
    rope, local = _rope(fields, family)
    rotated = _rotated(head_dim, rope, family)
    long = rope.get("rope_type") == "longrope"
    unrotated = _unrotated(fields, layers) if family.windows == "unrotated" else ()
    gemma2 = family.gemma == 2
    return ModelConfig(
        vocab_size=_size(fields, "vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=int(fields.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        ffn=_size(fields, "intermediate_size"),
        norm_eps=float(fields["rms_norm_eps"]),
        max_len=max_len,
        rope_frequencies=rope_frequencies(rotated, rope),
        tied=bool(fields.get("tie_word_embeddings", family.tied)),
        rope_scale=rope_scale(rope, max_len),
        short_rope_frequencies=rope_frequencies(rotated, rope, short=True) if long else (),
        short_len=int(rope["original_max_position_embeddings"]) if long else 0,
        local_rope_frequencies=rope_frequencies(rotated, local) if local else (),
        unrotated_layers=unrotated,
        windows=_windows(fields, family, layers, unrotated),
        activation=_activation(fields, family),
        embedding_scale=hidden**0.5 if family.gemma else 1.0,
        score_scale=float(fields["query_pre_attn_scalar"]) ** -0.5 if family.gemma > 1 else None,
        score_cap=float(fields.get("attn_logit_softcapping") or 0) if gemma2 else 0.0,
        logit_cap=float(fields.get("final_logit_softcapping") or 0) if family.gemma > 1 else 0.0,
        post_norms=family.gemma > 1,
    )


def _size(fields: Mapping[str, Any], name: str) -> int:
    size = int(fields[name])
    if not 0 < size <= _LARGEST:
        raise ModelError(f"the model's {name} is {size}, it must be 1 to {_LARGEST}")
    return size


def _activation(fields: Mapping[str, Any], family: _Family) -> Literal["silu", "gelu_tanh"]:
    default = "gelu_pytorch_tanh" if family.gemma else "silu"
    name = fields.get("hidden_activation") or fields.get("hidden_act") or default
    if family.gemma == 1 and name == "gelu":  # what its first files say, and do not mean
        name = "gelu_pytorch_tanh"
    if name not in _ACTIVATIONS:
        raise ModelError(f"activation {name!r} is not supported, only {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _rope(
    fields: Mapping[str, Any], family: _Family
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """How positions rotate keys, and how in layers with a window if differently."""
    found = _table(fields, "rope_parameters")
    theta = fields.get("rope_theta", family.theta)
    local: dict[str, Any] | None = None
    if "full_attention" in found:  # one for each type of layer
        local = _table(found, "sliding_attention") or None
        found = _table(found, "full_attention")
    if family.gemma == 3:
        local = {"rope_theta": fields.get("rope_local_base_freq", 10000.0), **(local or {})}
    if not found:
        found = _table(fields, "rope_scaling")
    rope = {"rope_theta": theta, **found}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if family.partial and kind in ("su", "yarn"):  # earlier names of what Phi-3 does
        kind = "longrope"
    rope["rope_type"] = kind
    rope.setdefault("partial_rotary_factor", fields.get("partial_rotary_factor"))
    if "original_max_position_embeddings" in fields and kind != "default":
        rope["original_max_position_embeddings"] = fields["original_max_position_embeddings"]
    if kind in ("yarn", "longrope") and "original_max_position_embeddings" not in rope:
        raise ModelError(f"rope scaling {kind!r} has no 'original_max_position_embeddings'")
    return rope, local


def _table(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that holds fields of its own; empty where there is none."""
    found = fields.get(name) or {}
    if not isinstance(found, dict):
        raise ModelError(f"the model's config.json has {found!r} as {name!r}, not a table")
    return dict(found)


def _rotated(head_dim: int, rope: Mapping[str, Any], family: _Family) -> int:
    """Dimensions of a head that rotate."""
    part = float(rope.get("partial_rotary_factor") or 1.0)
    if part != 1 and not family.partial:
        raise ModelError(f"partial_rotary_factor {part} is supported for phi3 models only")
    rotated = int(head_dim * part)
    if not 0 < rotated <= head_dim:
        raise ModelError(
            f"rotary embedding of {rotated} of {head_dim} head dimensions is impossible"
        )
    return rotated


def _unrotated(fields: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    given = fields.get("no_rope_layers")
    if given is not None:
        return tuple(layer for layer in range(layers) if not given[layer])
    step = int(fields.get("no_rope_layer_interval", 4))
    return tuple(range(step - 1, layers, step))


def _windows(
    fields: Mapping[str, Any], family: _Family, layers: int, unrotated: tuple[int, ...]
) -> tuple[int, ...]:
    """The window of each layer; () if there are none."""
    window = fields.get("sliding_window")
    if family.windows in ("late", "unrotated") and not fields.get("use_sliding_window", False):
        window = None
    types = fields.get("layer_types")
    if not window or family.windows == "none":
        if types and any(kind != "full_attention" for kind in types):
            raise ModelError(f"layer_types {sorted(set(types))} without a window are not supported")
        return ()
    if types and family.windows != "all":
        unknown = set(types) - {"full_attention", "sliding_attention"}
        if unknown or len(types) != layers:
            raise ModelError(f"layer_types {types} are not supported for {layers} layers")
        windowed = {layer for layer, kind in enumerate(types) if kind == "sliding_attention"}
    elif family.windows == "all":
        windowed = set(range(layers))
    elif family.windows == "late":
        windowed = set(range(int(fields["max_window_layers"]), layers))
    elif family.windows == "unrotated":
        windowed = set(unrotated)
    else:
        default = 2 if family.gemma == 2 else 6
        step = int(fields.get("sliding_window_pattern") or default)
        windowed = {layer for layer in range(layers) if (layer + 1) % step}
    sizes = tuple(int(window) if layer in windowed else 0 for layer in range(layers))
    return sizes if any(sizes) else ()
