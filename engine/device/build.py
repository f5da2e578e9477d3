"""A KV pool and a runner that fit the accelerator's memory."""

import torch

from engine import footprint
from engine.config import EngineConfig
from engine.device.drawing import Drawing
from engine.device.runner import DeviceRunner
from engine.errors import OutOfMemory
from engine.kv.cache import KVCache
from engine.kv.swap import HostStore, SwappingRunner
from engine.models.config import ModelConfig
from engine.models.device_decoder import DeviceDecoder
from engine.overlap import Launcher
from engine.pace import Pace

#: For captured steps, the libraries' workspaces, and what allocation in pieces wastes.
_SPARE_BYTES = 1 << 30
#: Partial results a row of a long step leaves: scene, persona, own part, and one more.
_PARTS = 4

#: Kernels count numbers within one head of one layer in 32 bits.
_MOST_NUMBERS = 2**31 - 1


def build_runner(
    decoder: DeviceDecoder, config: EngineConfig, max_length: int
) -> tuple[Launcher, int]:
    """A runner, and how many blocks its pool has; with `swap_space`, one that can move KV to the
    host's memory.

    The pool takes `kv_cache_bytes`, or what `gpu_memory_utilization` of the device's memory leaves
    beside the weights (and everybody else's use) and the largest step.

    Raises:
        OutOfMemory: the pool would hold less than one block for each request.
    """
    shape, size, pace = decoder.config, config.block_size, Pace.of(config)
    itemsize = decoder.kv_dtype.itemsize
    block_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize * size
    free, total = _memory(decoder.device)
    step = _step_bytes(shape, pace, itemsize)
    spare = int(total * config.gpu_memory_utilization) - (total - free) - step
    budget = config.kv_cache_bytes or max(spare, 0)
    blocks = min(budget // block_bytes, _MOST_NUMBERS // (size * shape.head_dim) - 1)
    if blocks < pace.max_num_seqs:
        raise OutOfMemory(
            f"a KV cache of {budget:,} bytes holds {blocks} blocks of {block_bytes:,} bytes, less "
            f"than one for each of {pace.max_num_seqs} requests; of the device's {total:,} bytes "
            f"{free:,} are free and the largest step takes {step:,}: raise gpu_memory_utilization, "
            "or lower max_num_batched_tokens or max_num_seqs"
        )
    # One block beyond the pool's takes what padding rows write.
    cache = KVCache(
        shape.layers,
        shape.kv_heads,
        shape.head_dim,
        blocks + 1,
        size,
        decoder.kv_dtype,
        decoder.device,
    )
    runner = DeviceRunner(
        decoder,
        cache,
        pace.max_num_seqs,
        min(max_length, blocks * size),
        eager=config.enforce_eager,
    )
    runner.warm_up()
    places = config.swap_space // block_bytes
    return (SwappingRunner(runner, HostStore(cache, places)) if places else runner), blocks


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes of a device's memory: free, and in all. Under Triton's interpreter it is the host's."""
    if device.type == "cpu":
        free = footprint.available()
        return free, free
    return torch.cuda.mem_get_info(device)


def _step_bytes(shape: ModelConfig, pace: Pace, itemsize: int) -> int:
    """What the largest step holds at once beside weights and KV."""
    inner = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    row = (4 * shape.hidden + 2 * inner + 3 * shape.ffn) * itemsize
    row += _PARTS * shape.heads * (shape.head_dim + 1) * 4
    logits = 2 * pace.max_num_seqs * shape.vocab_size * itemsize
    logits += Drawing.bytes_for(shape.vocab_size, pace.max_num_seqs)
    return pace.max_num_batched_tokens * row + logits + _SPARE_BYTES
