"""How much memory a model and its cache will take, and whether it is there: asked before any of it
is allocated, because what a system does when memory runs out is to end the process.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.config import EngineConfig
from engine.device.choose import choose_device
from engine.errors import OutOfMemory
from engine.models.config import ModelConfig
from engine.pace import Pace

#: Bytes of a cache nobody gave a size, and the share of free memory it takes at most.
_DEFAULT_CACHE = 2 << 30
_FREE_SHARE = 0.25
#: Bytes of a weight, and of a number of a key or value.
_WEIGHT_BYTES = {"exact": 4, "bf16": 2, "fast": 1, "int4": 0.625}
_CACHE_BYTES = {"exact": 4, "bf16": 2, "fast": 2, "int4": 2}
#: Where Linux shows a container its limits.
_GROUP = Path("/sys/fs/cgroup")

_log = logging.getLogger("troupe.engine")


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an engine on the CPU needs, in bytes. Weights and steps are estimates.

    Attributes:
        weights: of the model.
        cache: the KV pool.
        context: KV of one context of the greatest length, a part of the pool.
        step: what the largest step holds at once.
        free: what the machine, or the container, has to give.
    """

    weights: int
    cache: int
    context: int
    step: int
    free: int

    @property
    def needed(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.step

    def __str__(self) -> str:
        return (
            f"weights {_mb(self.weights)}, KV cache {_mb(self.cache)} (one longest context takes "
            f"{_mb(self.context)}), steps {_mb(self.step)}; {_mb(self.free)} are free"
        )


def available() -> int:
    """Bytes this process may still take: what the machine has, or less in a container."""
    free = psutil.virtual_memory().available
    try:
        limit = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no group, or "max"
        return free
    return min(free, limit - used + int(stat.get("inactive_file", 0)))


def cache_budget(config: EngineConfig, free: int) -> int:
    """Bytes of the KV pool on a CPU: what is asked for, or what leaves the machine usable."""
    return config.kv_cache_bytes or min(_DEFAULT_CACHE, int(free * _FREE_SHARE))


def footprint(shape: ModelConfig, config: EngineConfig) -> Footprint:
    """What a model of this shape takes on the CPU with these settings."""
    free = available()
    inner = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    layer = shape.hidden * (inner + shape.heads * shape.head_dim + 3 * shape.ffn)
    table = shape.hidden * shape.vocab_size
    numbers = shape.layers * layer + table  # the output projection, laid out by itself
    weights = int(numbers * _WEIGHT_BYTES[config.numerics] + table * _CACHE_BYTES[config.numerics])
    token = 2 * shape.layers * shape.kv_heads * shape.head_dim * _CACHE_BYTES[config.numerics]
    length = min(config.max_model_len or shape.max_len, shape.max_len)
    row = 4 * (4 * shape.hidden + 2 * inner + 3 * shape.ffn)
    pace = Pace.of(config)
    step = pace.max_num_batched_tokens * row + 4 * pace.max_num_seqs * shape.vocab_size
    return Footprint(weights, cache_budget(config, free), length * token, step, free)


def check(shape: ModelConfig, config: EngineConfig) -> None:
    """Raise `OutOfMemory`, which says what is needed, what is there, and which setting to change.

    On a GPU the runner does, who knows that device's memory.
    """
    if choose_device(config.device).type != "cpu":
        return
    need = footprint(shape, config)
    _log.info("memory: %s", need)
    advice = []
    if need.needed > need.free:
        if config.kv_cache_bytes and need.needed - need.cache < need.free:
            left = need.free - need.weights - need.step
            advice.append(f"lower kv_cache_bytes to {left:,} or less")
        if _WEIGHT_BYTES[config.numerics] > _WEIGHT_BYTES["fast"]:
            advice.append("set numerics to 'fast', whose weights are smaller")
        advice.append("take a smaller model, or free memory")
        problem = f"this model needs {_mb(need.needed)} of memory"
    elif config.max_model_len and need.context > need.cache:
        advice.append(f"raise kv_cache_bytes to {need.context:,} or more, or lower max_model_len")
        problem = f"a context of max_model_len = {config.max_model_len} tokens does not fit"
    else:
        return
    raise OutOfMemory(f"{problem}: {need}. What helps: {'; '.join(advice)}")


def ran_out(error: BaseException) -> bool:
    """Whether an error of a step means that there was no memory for it."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's, of the device's module
        or "not enough memory" in str(error)
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
