"""Tiny random models of every family, as transformers makes them."""

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 160
_TINY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.25,
    "pad_token_id": 0,
}
_GEMMA: dict[str, Any] = {"head_dim": 16, "query_pre_attn_scalar": 24}
_WINDOW = 40


def long_rope(pairs: int) -> dict[str, Any]:
    """Parameters of LongRoPE for so many pairs of dimensions, three quarters of a head."""
    return {
        "rope_type": "longrope",
        "short_factor": [1 + 0.1 * n for n in range(pairs)],
        "long_factor": [1 + 0.9 * n for n in range(pairs)],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
    }


#: Family and what differs from the tiny model. Windows are far shorter than the texts.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama, linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama, yarn": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": _WINDOW}),
    "qwen 2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen 2, late windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": _WINDOW, "max_window_layers": 2},
    ),
    "qwen 3": ("Qwen3", {"head_dim": 16}),
    "smollm 3": ("SmolLM3", {}),
    "smollm 3, windows": ("SmolLM3", {"use_sliding_window": True, "sliding_window": _WINDOW}),
    "phi 3": ("Phi3", {"sliding_window": _WINDOW}),
    "phi 3, long": (
        "Phi3",
        {"original_max_position_embeddings": 64, "rope_parameters": long_rope(3)},
    ),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma 2": (
        "Gemma2",
        {
            **_GEMMA,
            "sliding_window": _WINDOW,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
            # Else scores are not capped at all.
            "attn_implementation": "eager",
        },
    ),
    "gemma 3": ("Gemma3Text", {**_GEMMA, "sliding_window": _WINDOW, "sliding_window_pattern": 3}),
}


def build(family: str, folder: Path, **changes: Any) -> Any:
    """Save a tiny random model of this family; returns transformers' model."""
    name, differs = FAMILIES[family]
    torch.manual_seed(len(family))
    config = getattr(transformers, f"{name}Config")(**_TINY | differs | changes)
    name = name.removesuffix("Text")
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval().float()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith(("bias", "norm.weight")):  # zeros and ones would hide mistakes
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    return model
