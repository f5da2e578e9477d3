"""vLLM's names for an engine's settings, and what they mean here."""

from dataclasses import dataclass, fields
from typing import Any, NoReturn

import msgspec

from engine.config import EngineConfig
from engine.errors import InvalidRequest

#: vLLM's names for numbers, and ours. Ours for "auto" is what the settings say already.
_NUMERICS = {
    "auto": None,
    "float32": "exact",
    "float": "exact",
    "bfloat16": "bf16",
}
_POLICIES = {"fcfs": "fifo"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Settings by the names vLLM gives them; None leaves a setting as it is.

    Attributes:
        gpu_memory_utilization: share of a GPU's memory for weights, KV pool and steps.
        max_num_seqs: requests decoded together.
        max_num_batched_tokens: most rows in one step.
        max_model_len: longest prompt + output in tokens.
        block_size: tokens per KV block.
        enforce_eager: capture no steps; on a CPU none are captured anyhow.
        dtype: "float32" is exact, "bfloat16" halves memory traffic, "auto" changes nothing.
        scheduling_policy: "fcfs", "priority", or another of `EngineConfig.scheduling_policy`.
        seed: where requests without a seed of their own get theirs from.
        swap_space: GiB of host memory for KV of parked replies; on a GPU only.
        kv_cache_dtype: keys and values have the model's own type; only "auto".
        tensor_parallel_size: not built; only 1.
        quantization: "fp8" keeps weights in 8 bits, on a GPU only.
        enable_chunked_prefill, enable_prefix_caching: always on; only True.
    """

    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    enforce_eager: bool | None = None
    dtype: str | None = None
    scheduling_policy: str | None = None
    seed: int | None = None
    swap_space: float | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None
    quantization: str | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None

    def applied_to(self, config: EngineConfig) -> EngineConfig:
        """The same settings with these changed.

        Raises:
            InvalidRequest: one is out of range, or asks for what is not built.
        """
        self._refuse_what_is_not_built()
        same = {field.name for field in fields(self)} & set(EngineConfig.__struct_fields__)
        changes = {name: getattr(self, name) for name in sorted(same)}
        changes["numerics"] = self._numerics()
        if self.swap_space is not None:
            changes["swap_space"] = int(self.swap_space * 2**30)
        if self.scheduling_policy is not None:
            changes["scheduling_policy"] = _POLICIES.get(
                self.scheduling_policy, self.scheduling_policy
            )
        changes = {name: value for name, value in changes.items() if value is not None}
        _make_room(changes, config)
        try:
            return msgspec.convert({**msgspec.structs.asdict(config), **changes}, EngineConfig)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"engine settings: {error}") from error

    def _numerics(self) -> str | None:
        if self.dtype is None:
            return None
        name = str(self.dtype).removeprefix("torch.")
        if name not in _NUMERICS:
            _refuse("dtype", self.dtype, f"known are {', '.join(map(repr, _NUMERICS))}")
        return _NUMERICS[name]

    def _refuse_what_is_not_built(self) -> None:
        if self.kv_cache_dtype not in (None, "auto"):
            _refuse("kv_cache_dtype", self.kv_cache_dtype, "KV has the model's type; only 'auto'")
        if self.tensor_parallel_size not in (None, 1):
            _refuse("tensor_parallel_size", self.tensor_parallel_size, "a model runs on one device")
        if self.quantization not in (None, "fp8"):
            _refuse(
                "quantization",
                self.quantization,
                "known is 'fp8'; weights of a file are read in the types they have",
            )
        for name in ("enable_chunked_prefill", "enable_prefix_caching"):
            if getattr(self, name) not in (None, True):
                _refuse(name, getattr(self, name), "it is always on")


def _make_room(changes: dict[str, Any], config: EngineConfig) -> None:
    """Let settings that were not named follow those that were, as far as they must."""
    most = changes.get("max_num_seqs", config.max_num_seqs)
    rows = changes.get("max_num_batched_tokens")
    if not isinstance(most, int | None) or not isinstance(rows, int | None):
        return  # refused for its type below
    if most is not None and (config.reserved_slots or 0) >= most:
        changes["reserved_slots"] = max(most - 1, 0)
    slots, least = most or 1, config.min_prefill_tokens
    if rows is None and config.max_num_batched_tokens is not None:
        room = slots + (least or 1)
        changes["max_num_batched_tokens"] = max(config.max_num_batched_tokens, room)
    elif rows is not None and least is not None and rows < slots + least:
        changes["min_prefill_tokens"] = max(rows - slots, 1)


def _refuse(name: str, value: object, reason: str) -> NoReturn:
    raise InvalidRequest(f"{name}={value!r} is not supported: {reason}")
