"""Reads a checkpoint's weights as the compiled pass wants them."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.weights.checkpoint import sized
from kernels.cpu.native.matrix import Matrix
from kernels.cpu.native.products import BYTES, HALVES
from kernels.cpu.native.tables import Floats, Weights

if TYPE_CHECKING:
    from engine.weights.checkpoint import Checkpoint
    from engine.weights.fetch import Progress


def read_weights(
    checkpoint: "Checkpoint", form: int, progress: "Progress | None" = None
) -> Weights:
    """Read, round and lay out a checkpoint's weights, layer by layer.

    Args:
        form: of the layers' products, see `kernels.cpu.native.products`. The head stays in 8 bits
            at least: what it rounds away is lost for all layers.

    Raises:
        ModelError: a tensor is missing, or has not the size the config says.
    """
    config = checkpoint.config
    layers, hidden, dim = config.layers, config.hidden, config.head_dim
    inner, kv = config.heads * dim, config.kv_heads * dim

    def norms(name: str, width: int) -> Floats:
        if f"model.layers.0.{name}" not in checkpoint:
            return np.zeros((layers, 0), np.float32)
        rows = [sized(checkpoint, f"model.layers.{n}.{name}", width).float() for n in range(layers)]
        stacked: Floats = torch.stack(rows).numpy()
        return stacked

    biases = [f"self_attn.{part}_proj.bias" for part in "qkv"]
    widths = (inner, kv, kv)
    weights = Weights(
        embedding=sized(checkpoint, "model.embed_tokens.weight", config.vocab_size, hidden)
        .to(torch.bfloat16)
        .view(torch.uint16)
        .numpy(),
        attention_norm=norms("input_layernorm.weight", hidden),
        ffn_norm=norms("post_attention_layernorm.weight", hidden),
        norm=sized(checkpoint, "model.norm.weight", hidden).float().numpy(),
        qkv=Matrix.empty(form, layers, inner + 2 * kv, hidden),
        output=Matrix.empty(form, layers, hidden, inner),
        gate_up=Matrix.empty(form, layers, 2 * config.ffn, hidden),
        down=Matrix.empty(form, layers, hidden, config.ffn),
        head=Matrix.empty(HALVES if form == HALVES else BYTES, 1, config.vocab_size, hidden),
        qkv_bias=np.concatenate(
            [norms(name, width) for name, width in zip(biases, widths, strict=True)], 1
        ),
        q_norm=norms("self_attn.q_norm.weight", dim),
        k_norm=norms("self_attn.k_norm.weight", dim),
        windows=np.array([config.window(n) for n in range(layers)], np.int32),
        rotated=np.array([n not in config.unrotated_layers for n in range(layers)]),
    )
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        parts = [
            sized(checkpoint, f"{prefix}.self_attn.{part}_proj.weight", width, hidden)
            for part, width in zip("qkv", widths, strict=True)
        ]
        weights.qkv.put(layer, torch.cat(parts))
        weights.output.put(
            layer, sized(checkpoint, f"{prefix}.self_attn.o_proj.weight", hidden, inner)
        )
        gate, up = (
            sized(checkpoint, f"{prefix}.mlp.{part}_proj.weight", config.ffn, hidden)
            for part in ("gate", "up")
        )
        weights.gate_up.put(layer, torch.cat((gate, up)))
        weights.down.put(
            layer, sized(checkpoint, f"{prefix}.mlp.down_proj.weight", hidden, config.ffn)
        )
        if progress:
            progress("weights", layer + 1, layers)
    table = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    weights.head.put(0, sized(checkpoint, table, config.vocab_size, hidden))
    return weights
