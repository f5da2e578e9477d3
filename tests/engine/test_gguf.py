"""A model of any family is the same from a GGUF file as from the folder it was made from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.errors import ModelError
from engine.models.config import ModelConfig
from engine.weights.gguf import GGUFCheckpoint
from engine.weights.safetensors import FolderCheckpoint
from tests.engine.families import VOCAB, build

#: What llama.cpp calls a family, and its number in the library that names its tensors.
KINDS: dict[str, tuple[str, gguf.MODEL_ARCH]] = {
    "llama": ("llama", gguf.MODEL_ARCH.LLAMA),
    "llama, biases": ("llama", gguf.MODEL_ARCH.LLAMA),
    "llama, linear rope": ("llama", gguf.MODEL_ARCH.LLAMA),
    "llama, yarn": ("llama", gguf.MODEL_ARCH.LLAMA),
    "qwen 2": ("qwen2", gguf.MODEL_ARCH.QWEN2),
    "qwen 3": ("qwen3", gguf.MODEL_ARCH.QWEN3),
    "smollm 3": ("smollm3", gguf.MODEL_ARCH.SMOLLM3),
    "phi 3": ("phi3", gguf.MODEL_ARCH.PHI3),
    "phi 3, long": ("phi3", gguf.MODEL_ARCH.PHI3),
    "gemma": ("gemma", gguf.MODEL_ARCH.GEMMA),
    "gemma 2": ("gemma2", gguf.MODEL_ARCH.GEMMA2),
    "gemma 3": ("gemma3", gguf.MODEL_ARCH.GEMMA3),
}


def convert(family: str, folder: Path, path: Path, **more: Any) -> FolderCheckpoint:
    """Write a folder's model as llama.cpp's converter does, in float32; returns the folder's."""
    kind, arch = KINDS[family]
    source = FolderCheckpoint(folder)
    config, fields = source.config, source._fields
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.max_len)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if config.head_dim != config.hidden // config.heads:
        writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(2 * len(config.rope_frequencies))
    if config.windows:
        writer.add_sliding_window(max(config.windows))
    if kind == "gemma3":
        writer.add_sliding_window_pattern(3)
    if config.score_cap:
        writer.add_attn_logit_softcapping(config.score_cap)
    if config.logit_cap:
        writer.add_final_logit_softcapping(config.logit_cap)
    _write_rope(writer, fields)
    for key, value in more.items():
        writer.add_uint32(f"{kind}.{key}", value)
    writer.add_token_list([f"<{n}>" for n in range(VOCAB)])
    names = gguf.get_tensor_name_map(arch, config.layers)
    for name in source._files:
        stem, end = name.rsplit(".", 1)
        # `tensor` gives norms as what they multiply with, which is what the converter writes.
        tensor = source.tensor(name)
        if kind in ("llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
            heads = config.heads if "q_proj" in name else config.kv_heads
            halves = tensor.reshape(heads, 2, config.head_dim // 2, *tensor.shape[1:])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(f"{names.get_name(stem)}.{end}", tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return source


def _write_rope(writer: gguf.GGUFWriter, fields: dict[str, Any]) -> None:
    rope = fields["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    scalings = {"linear": gguf.RopeScalingType.LINEAR, "yarn": gguf.RopeScalingType.YARN}
    if rope["rope_type"] in scalings:
        writer.add_rope_scaling_type(scalings[rope["rope_type"]])
        writer.add_rope_scaling_factor(rope["factor"])
    if "original_max_position_embeddings" in rope:
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    for length in ("long", "short"):
        if factors := rope.get(f"{length}_factor"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(factors, np.float32))


def rounded(config: ModelConfig) -> ModelConfig:
    """What is left of a shape whose real numbers were kept in float32."""
    return replace(config, norm_eps=float(np.float32(config.norm_eps)),
                   score_cap=float(np.float32(config.score_cap)),
                   logit_cap=float(np.float32(config.logit_cap)))  # fmt: skip


@pytest.mark.parametrize("family", KINDS)
def test_equals_the_folder(family: str, tmp_path: Path) -> None:
    """The shape, and every tensor to the bit, under the names the decoder asks for."""
    # llama.cpp scales Gemma's scores by the width of a head, in all but its largest models.
    changes = {"query_pre_attn_scalar": 16} if family in ("gemma 2", "gemma 3") else {}
    build(family, tmp_path, **changes)
    theirs = convert(family, tmp_path, tmp_path / "tiny.gguf")
    ours = GGUFCheckpoint(tmp_path / "tiny.gguf")
    assert ours.config == rounded(theirs.config)
    asked = set()
    for name in theirs._files:
        for fused, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")),
                             ("gate_up_proj", ("gate_proj", "up_proj"))):  # fmt: skip
            if fused in name:
                asked |= {name.replace(fused, part) for part in parts}
                break
        else:
            asked.add(name)
    for name in asked:
        assert name in ours
        assert torch.equal(ours.tensor(name), theirs.tensor(name)), name
    assert ours.unread() == theirs.unread() == []


def test_the_largest_gemmas_scale_by_hidden_width(tmp_path: Path) -> None:
    build("gemma 2", tmp_path, num_hidden_layers=46)
    convert("gemma 2", tmp_path, tmp_path / "tiny.gguf")
    assert GGUFCheckpoint(tmp_path / "tiny.gguf").config.score_scale == (48 / 6) ** -0.5


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    build("llama", tmp_path)
    convert("llama", tmp_path, tmp_path / "tiny.gguf", expert_count=8)
    with pytest.raises(ModelError, match="mixture of experts"):
        GGUFCheckpoint(tmp_path / "tiny.gguf")
