"""The same model is the same whatever file it comes in, and a bad file says what is wrong."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.errors import ModelError
from engine.models.config import rope_frequencies, rope_scale
from engine.models.hub import read_config
from engine.weights.gguf import GGUFCheckpoint
from engine.weights.load import load_model, open_checkpoint
from engine.weights.safetensors import FolderCheckpoint
from tests.engine.paged import PagedLoop
from tests.engine.test_decoder import TINY, build_folder, tokens
from tests.engine.test_tokenizer import metadata

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_KINDS = {"attn_q": "Q8_0", "ffn_up": "F16", "ffn_gate": "Q4_1", "token_embd": "Q8_0"}


def _permuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of Q or K in llama.cpp's order, as its converter writes them."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1)
    return halves.transpose(1, 2).reshape(rows.shape)


def write_gguf(path: Path, folder: Path, **changes: Any) -> None:
    """Convert a tiny Llama folder to GGUF with tensors of mixed types."""
    source = FolderCheckpoint(folder)
    config = source.config
    architecture = changes.pop("architecture", "llama")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.max_len)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    words = metadata()
    spare = [f"<{n}>" for n in range(config.vocab_size - len(words["tokenizer.ggml.tokens"]))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*words["tokenizer.ggml.tokens"], *spare])
    writer.add_token_merges(words["tokenizer.ggml.merges"])
    writer.add_token_types([*words["tokenizer.ggml.token_type"], *[5] * len(spare)])
    writer.add_eos_token_id(1)
    if "rope_freqs" in changes:
        writer.add_tensor("rope_freqs.weight", np.array(changes["rope_freqs"], dtype=np.float32))
    if "more" in changes:
        writer.add_tensor(changes["more"], np.zeros(8, dtype=np.float32))
    for name in source._files:
        stem = name.removesuffix(".weight")
        layer, inner = "", stem
        if stem.startswith("model.layers."):
            number, inner = stem.removeprefix("model.layers.").split(".", 1)
            layer = f"blk.{number}."
        values = source.tensor(name)
        if inner.endswith(("q_proj", "k_proj")) and architecture == "llama":
            values = _permuted(values, config.heads if "q_proj" in inner else config.kv_heads)
        kind = gguf.GGMLQuantizationType[_KINDS.get(_NAMES[inner], "F32")]
        stored = gguf.quantize(values.numpy(), kind)
        writer.add_tensor(f"{layer}{_NAMES[inner]}.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    build_folder("llama", path)
    return path


def test_gguf_equals_the_folder_it_was_made_from(folder: Path, tmp_path: Path) -> None:
    """Within what each tensor's type keeps; the shape to the bit."""
    write_gguf(tmp_path / "tiny.gguf", folder)
    theirs, ours = FolderCheckpoint(folder), GGUFCheckpoint(tmp_path / "tiny.gguf")
    assert replace(ours.config, norm_eps=theirs.config.norm_eps) == theirs.config  # kept in float32
    assert ours.config.norm_eps == pytest.approx(theirs.config.norm_eps)
    for name in theirs._files:
        original, read = theirs.tensor(name), ours.tensor(name)
        assert read.dtype is torch.float32
        similar = torch.nn.functional.cosine_similarity(original.flatten(), read.flatten(), dim=0)
        assert similar > 0.99, name
        if "v_proj" in name or "norm" in name:
            assert torch.equal(original, read)


def test_a_gguf_file_speaks(folder: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", folder)
    seen: list[tuple[str, int, int]] = []
    model = load_model(
        str(tmp_path / "tiny.gguf"),
        data_dir=tmp_path,
        numerics="exact",
        progress=lambda *step: seen.append(step),
    )
    assert seen == [("weights", layer, 3) for layer in (1, 2, 3)]
    assert model.name == "tiny"
    assert model.tokenizer.eos_ids == {1}
    loop = PagedLoop(model.decoder)
    assert loop.prefill(loop.open(tokens(20)), chunk=20).shape == (20, model.config.vocab_size)


def test_frequency_divisors_of_a_file_are_used(folder: Path, tmp_path: Path) -> None:
    divisors = [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0]
    write_gguf(tmp_path / "tiny.gguf", folder, rope_freqs=divisors)
    plain = FolderCheckpoint(folder).config.rope_frequencies
    found = GGUFCheckpoint(tmp_path / "tiny.gguf").config.rope_frequencies
    assert found == pytest.approx([f / d for f, d in zip(plain, divisors, strict=True)])


def test_other_architectures_and_broken_files_are_refused(folder: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "other.gguf", folder, architecture="llama4")
    with pytest.raises(ModelError, match="'llama4' model, only llama, qwen2"):
        GGUFCheckpoint(tmp_path / "other.gguf")
    write_gguf(tmp_path / "cut.gguf", folder)
    whole = (tmp_path / "cut.gguf").read_bytes()
    for size in (0, 3, 100, 5000, len(whole) - 1000):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(ModelError, match="cannot read the GGUF file"):
            GGUFCheckpoint(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "mixtral"}, "'mixtral' are not supported, only llama, mistral, qwen2"),
        ({"hidden_act": "gelu"}, "'gelu' is not supported, only silu, gelu_pytorch_tanh"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_key_value_heads": 4}, "6 heads cannot share 4"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2}},
            "'dynamic' is not supported, only lin",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "'yarn' has no 'original_max_position"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"use_bidirectional_attention": True}, "only causal attention"),
        ({"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["linear_attention"] * 3,
            },
            "linear_attention",
        ),
        (
            {"model_type": "smollm3", "no_rope_layers": [1]},
            "cannot be understood",
        ),
        (
            {
                "model_type": "phi3",
                "original_max_position_embeddings": 64,
                "rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]},
            },
            "1 factors for 8 pairs",
        ),
        ({"hidden_size": "wide"}, "cannot be understood"),
        ({"rope_scaling": {"type": "llama3", "factor": 2}}, "no 'original_max_position"),
        ({"num_hidden_layers": 0}, "layers is 0"),
        ({"head_dim": 15}, "of 16 of 15 head dimensions"),
    ],
)
def test_an_unsupported_config_names_the_field(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        read_config(TINY | {"model_type": "llama"} | changes)
    with pytest.raises(ModelError, match="no 'vocab_size'"):
        read_config({k: v for k, v in TINY.items() if k != "vocab_size"} | {"model_type": "llama"})


def test_what_a_llama_is_not_is_named() -> None:
    """A decoder that knows Llamas only can tell from `extras` what it would get wrong."""
    llama = read_config(TINY | {"model_type": "llama"})
    assert llama.extras() == ()
    mistral = read_config(TINY | {"model_type": "mistral", "sliding_window": 256})
    assert mistral.extras() == ("windows",)
    assert mistral.max_len == 1024
    gemma = read_config(
        TINY
        | {
            "model_type": "gemma2",
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "attn_logit_softcapping": 5.0,
        }
    )
    assert gemma.windows == (8, 0, 8)
    assert set(gemma.extras()) == {
        "windows",
        "activation",
        "embedding_scale",
        "score_scale",
        "score_cap",
        "post_norms",
    }


def test_frequencies_of_positions() -> None:
    assert rope_frequencies(4, {"rope_theta": 100.0}) == pytest.approx((1.0, 0.1))
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert rope_scale(stretched, 128) == pytest.approx(1.1386294)
    assert rope_scale(stretched | {"attention_factor": 0.5}, 128) == 0.5
    assert rope_scale({"rope_type": "llama3"}, 128) == 1


def test_an_empty_config_is_not_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="type None are not supported"):
        FolderCheckpoint(tmp_path)


def test_tensors_that_nobody_reads_are_refused(folder: Path, tmp_path: Path) -> None:
    """What a file has beyond its type's shape would be left out, and the text be wrong."""
    write_gguf(tmp_path / "more.gguf", folder, more="blk.0.attn_sinks.weight")
    with pytest.raises(ModelError, match=r"not supported: blk\.0\.attn_sinks\.weight"):
        load_model(str(tmp_path / "more.gguf"), data_dir=tmp_path)


def test_an_incomplete_folder_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        FolderCheckpoint(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        FolderCheckpoint(tmp_path)
    index = {"weight_map": {"a": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"one\.safetensors missing"):
        FolderCheckpoint(tmp_path)
    (tmp_path / "one.safetensors").write_bytes(b"no tensors")
    checkpoint = FolderCheckpoint(tmp_path)
    with pytest.raises(ModelError, match="cannot read 'a'"):
        checkpoint.tensor("a")
    with pytest.raises(ModelError, match="no tensor 'b'"):
        checkpoint.tensor("b")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read .*config\.json"):
        FolderCheckpoint(tmp_path)


def test_a_model_that_is_nowhere_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spec in ("nothing", "./no/where", "models/missing.gguf"):
        with pytest.raises(ModelError, match=r"'default', a \.gguf file, a folder"):
            open_checkpoint(spec, data_dir=tmp_path)

    def offline(*_: Any, **__: Any) -> str:
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelError, match="cannot fetch 'org/name' from the model hub"):
        open_checkpoint("org/name", data_dir=tmp_path)
