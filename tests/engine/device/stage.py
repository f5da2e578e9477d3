"""Engines over one tiny model: on the device, and on the CPU as the reference."""

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.device.runner import DeviceRunner
from engine.kv.cache import KVCache
from engine.loop import Engine
from engine.models.decoder import Decoder
from engine.models.device_decoder import DeviceDecoder
from engine.outputs import RequestOutput
from engine.overlap import OverlapEngine
from engine.runner import ModelRunner, Runner
from engine.weights.safetensors import FolderCheckpoint

VOCAB, BLOCKS, BLOCK, LENGTH, SLOTS = 320, 128, 16, 400, 8


class Numbers:
    """A tokenizer that spells each token as its number."""

    vocab_size = VOCAB
    eos_ids: frozenset[int] = frozenset()
    concatenates = True

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f"{token} " for token in ids)


#: Families and what differs from `_TINY`.
SHAPES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", {}),
    "llama with biases": ("Llama", {"attention_bias": True}),
    "qwen 2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen 3": ("Qwen3", {"head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": 8, "head_dim": 16}),
    "qwen 3, windows": (
        "Qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "yarn": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "gemma 2": ("Gemma2", {"head_dim": 16, "sliding_window": 8}),
    "smollm 3": ("SmolLM3", {"no_rope_layers": [1, 0], "pad_token_id": 0}),
    "phi 3, partly": (
        "Phi3",
        {
            "pad_token_id": 0,
            "rope_parameters": {"partial_rotary_factor": 0.5, "rope_type": "default"},
        },
    ),
    "odd heads": (
        "Llama",
        {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16},
    ),
}
_TINY: dict[str, object] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
}


def folder(path: Path, shape: str = "llama") -> Path:
    """A folder with a tiny random model."""
    family, changes = SHAPES[shape]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**_TINY | changes)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().float()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):  # else zeros and ones, which would hide mistakes
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(path)
    return path


def opened(model: Path | FolderCheckpoint) -> FolderCheckpoint:
    return FolderCheckpoint(model) if isinstance(model, Path) else model


def device_runner(
    model: Path | FolderCheckpoint, device: torch.device, *, eager: bool = False
) -> DeviceRunner:
    decoder = DeviceDecoder.load(opened(model), torch.float32, device)
    shape = decoder.config
    cache = KVCache(
        shape.layers, shape.kv_heads, shape.head_dim, BLOCKS + 1, BLOCK, torch.float32, device
    )
    return DeviceRunner(decoder, cache, SLOTS, LENGTH, eager=eager, mixed_rows=(8, 24, 40))


def cpu_runner(model: Path | FolderCheckpoint) -> ModelRunner:
    decoder = Decoder.load(opened(model), "exact")
    shape = decoder.config
    cache = KVCache(
        shape.layers,
        shape.kv_heads,
        shape.head_dim,
        BLOCKS,
        BLOCK,
        decoder.kv_dtype,
        torch.device("cpu"),
    )
    return ModelRunner(decoder, cache)


def settings(**changes: object) -> EngineConfig:
    usual: dict[str, object] = {
        "max_num_seqs": SLOTS,
        "reserved_slots": 1,
        "max_num_batched_tokens": 64,
        "min_prefill_tokens": 8,
    }
    return EngineConfig(**{**usual, **changes})  # type: ignore[arg-type]


def engine(runner: Runner, *, blocks: int = BLOCKS, **changes: object) -> Engine:
    """An engine that waits for every step."""
    pool = BlockPool(blocks, BLOCK)
    return Engine(runner, Numbers(), pool, LENGTH, settings(**changes))  # type: ignore[arg-type]


def overlapping(runner: DeviceRunner, *, blocks: int = BLOCKS, **changes: object) -> OverlapEngine:
    """An engine that has a step under way while it plans the next."""
    pool = BlockPool(blocks, BLOCK)
    return OverlapEngine(runner, Numbers(), pool, LENGTH, settings(**changes))


def finish(running: Engine, limit: int = 400) -> dict[int, list[int]]:
    """Step until idle; the tokens of each request."""
    found: dict[int, list[int]] = {}
    for _ in range(limit):
        if not running.has_work:
            return found
        collect(found, running.step())
    raise AssertionError("the engine does not come to rest")


def collect(found: dict[int, list[int]], outputs: list[RequestOutput]) -> None:
    for output in outputs:
        assert output.error is None, output.error
        found.setdefault(output.request_id, []).extend(output.token_ids)
