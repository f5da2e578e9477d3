"""vLLM's names mean what they mean there, and what is not built is refused by name."""

import math
from typing import Any

import msgspec
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.options import EngineOptions
from engine.params import SamplingParams
from tests.engine.speech import byte_tokenizer, make_noisy, say

USUAL = EngineConfig(
    max_num_seqs=12, reserved_slots=2, max_num_batched_tokens=512, min_prefill_tokens=32
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"max_num_seqs": 5, "block_size": 32}, {"max_num_seqs": 5, "block_size": 32}),
        ({"dtype": "float32"}, {"numerics": "exact"}),
        ({"dtype": torch.bfloat16}, {"numerics": "bf16"}),
        ({"dtype": "auto"}, {}),
        ({"scheduling_policy": "fcfs"}, {"scheduling_policy": "fifo"}),
        ({"scheduling_policy": "fair"}, {"scheduling_policy": "fair"}),
        ({"gpu_memory_utilization": 0.5, "seed": 3}, {"gpu_memory_utilization": 0.5, "seed": 3}),
        (
            {"enforce_eager": True, "max_model_len": 99},
            {"enforce_eager": True, "max_model_len": 99},
        ),
        ({"max_num_seqs": 1}, {"max_num_seqs": 1, "reserved_slots": 0}),
        ({"max_num_seqs": 999}, {"max_num_seqs": 999, "max_num_batched_tokens": 1031}),
        (
            {"max_num_batched_tokens": 20},
            {"max_num_batched_tokens": 20, "min_prefill_tokens": 8},
        ),
        (
            {
                "swap_space": 0,
                "kv_cache_dtype": "auto",
                "tensor_parallel_size": 1,
                "quantization": None,
                "enable_chunked_prefill": True,
                "enable_prefix_caching": True,
            },
            {},
        ),
    ],
)
def test_names_change_what_they_name(options: dict[str, Any], expected: dict[str, Any]) -> None:
    changed = EngineOptions(**options).applied_to(USUAL)
    assert changed == msgspec.structs.replace(USUAL, **expected)


@pytest.mark.parametrize("value", [-1, math.nan])
@pytest.mark.parametrize(
    "name",
    [
        field.name
        for field in msgspec.structs.fields(EngineConfig)
        if type(field.default) in (int, float) or field.type in (int | None, float | None)
        if field.name != "seed"
    ],
)
def test_no_size_may_be_negative_or_nan(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        EngineConfig(**{name: value})  # type: ignore[arg-type]


def test_what_is_not_named_stays() -> None:
    config = EngineConfig(step_target_ms=33, numerics="exact", max_num_seqs=3)
    assert EngineOptions(block_size=8).applied_to(config).step_target_ms == 33
    assert EngineOptions(dtype="auto").applied_to(config).numerics == "exact"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"swap_space": -1}, "swap_space must be at least 0"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_model_len": 0}, "max_model_len must be at least 1"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8'"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2"),
        ({"quantization": "awq"}, "quantization='awq'"),
        ({"enable_chunked_prefill": False}, "enable_chunked_prefill=False"),
        ({"enable_prefix_caching": False}, "enable_prefix_caching=False"),
        ({"dtype": "half"}, "dtype='half'"),
        ({"dtype": torch.float16}, "dtype=torch.float16"),
        ({"scheduling_policy": "lottery"}, "lottery"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": "12"}, "max_num_seqs"),
        ({"block_size": 1.5}, "block_size"),
        ({"gpu_memory_utilization": 2}, "gpu_memory_utilization"),
        ({"max_num_batched_tokens": 4}, "max_num_batched_tokens"),
        ({"enforce_eager": "no"}, "enforce_eager"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        EngineOptions(**options).applied_to(USUAL)


def test_an_engines_seed_makes_requests_without_one_repeat() -> None:
    tokenizer = byte_tokenizer()

    def said(seed: int) -> list[tuple[int, ...]]:
        engine = make_noisy(tokenizer, seed=seed)[0]
        return [say(engine, SamplingParams(max_tokens=9)).token_ids for _ in range(3)]

    assert said(5) == said(5)
    assert said(5) != said(6)
    assert len(set(said(5))) == 3, "each request draws a seed of its own"
