"""Puts an engine together: a model, a KV pool that fits the machine, a runner."""

from functools import partial
from pathlib import Path

import msgspec
import torch

from engine import footprint
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.errors import ModelError, OutOfMemory
from engine.kv.cache import KVCache
from engine.loop import Engine
from engine.overlap import OverlapEngine
from engine.pace import Pace
from engine.runner import HostDecoder, ModelRunner
from engine.scripted import ScriptedModel, ScriptedRunner
from engine.sliding import Sliding
from engine.weights.fetch import Progress
from engine.weights.load import LoadedModel, load_model

_SCRIPTED_BLOCKS = 4096  # a scripted model has no KV; the books are kept all the same
_SCRIPTED_LENGTH = 8192


def load(
    spec: str, config: EngineConfig, *, data_dir: Path, progress: Progress | None = None
) -> LoadedModel:
    """Load a model as these settings want it; see `engine.weights.load.load_model`.

    Raises:
        ModelError: it cannot be found, fetched or understood.
        OutOfMemory: it will not fit, as its shape shows before any weights are read.
    """
    return load_model(
        spec,
        data_dir=data_dir,
        numerics=config.numerics,
        progress=progress,
        threads=config.threads,
        device=config.device,
        quantization=config.quantization,
        max_len=config.max_model_len,
        on_shape=partial(footprint.check, config=config),
    )


def build_engine(model: LoadedModel | ScriptedModel, config: EngineConfig) -> Engine:
    """An engine for `model`, with a KV pool of `kv_cache_bytes`, or what the machine (or the
    accelerator, if the model is on one) can spare.

    Raises:
        OutOfMemory: the pool would hold less than one short dialogue.
        ModelError: `sliding_window` or `swap_space` cannot work with this model or device.
    """
    if config.swap_space and (
        isinstance(model, ScriptedModel) or isinstance(model.decoder, HostDecoder)
    ):
        raise ModelError(
            "swap_space keeps KV of parked replies in this machine's memory, where on the CPU it "
            "is already: set swap_space to 0, and raise kv_cache_bytes for more room"
        )
    if isinstance(model, ScriptedModel):
        return _scripted_engine(model, config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    length = min(config.max_model_len or model.config.max_len, model.config.max_len)
    if (sliding := Sliding.of(config)) is not None:
        _check_sliding(sliding, length, on_host=isinstance(model.decoder, HostDecoder))
    if isinstance(model.decoder, HostDecoder):
        return _host_engine(model, model.decoder, config, length)
    config = msgspec.structs.replace(config, device="cuda")  # whatever "auto" has come to
    # Imported here: it needs Triton, which need not be installed.
    from engine.device.build import build_runner

    runner, blocks = build_runner(model.decoder, config, length)
    pool = BlockPool(blocks, config.block_size, _block_bytes(model, config))
    if config.enforce_eager:  # whoever looks for an error wants one step at a time
        return Engine(runner, model.tokenizer, pool, length, config)
    return OverlapEngine(runner, model.tokenizer, pool, length, config)


def _scripted_engine(model: ScriptedModel, config: EngineConfig) -> Engine:
    length = config.max_model_len or max(_SCRIPTED_LENGTH, 2 * model.longest)
    pool = BlockPool(max(_SCRIPTED_BLOCKS, 4 * length // config.block_size), config.block_size)
    runner = ScriptedRunner(model, config.script_step_ms)
    return Engine(runner, model.tokenizer, pool, length, config)


def _host_engine(
    model: LoadedModel, decoder: HostDecoder, config: EngineConfig, length: int
) -> Engine:
    shape, size = model.config, config.block_size
    if size % decoder.block_multiple:
        raise ModelError(
            f"block_size must be a multiple of {decoder.block_multiple} with these numerics, "
            f"not {size}; or set numerics to 'exact'"
        )
    blocks = _host_blocks(_block_bytes(model, config), config)
    cache = KVCache(
        shape.layers,
        shape.kv_heads,
        shape.head_dim,
        blocks,
        size,
        model.decoder.kv_dtype,
        torch.device("cpu"),
    )
    pool = BlockPool(blocks, size, _block_bytes(model, config))
    return Engine(ModelRunner(decoder, cache), model.tokenizer, pool, length, config)


def _host_blocks(block_bytes: int, config: EngineConfig) -> int:
    """How many blocks the pool has on the CPU; raises `OutOfMemory` if that cannot work."""
    free_bytes = footprint.available()
    budget = footprint.cache_budget(config, free_bytes)
    blocks, slots = budget // block_bytes, Pace.of(config).max_num_seqs
    if blocks < slots:
        raise OutOfMemory(
            f"a KV cache of {budget:,} bytes holds {blocks} blocks of {block_bytes:,} bytes, less "
            f"than one for each of {slots} requests; {free_bytes:,} bytes of memory "
            "are free: raise kv_cache_bytes or lower max_num_seqs"
        )
    if budget > free_bytes:
        raise OutOfMemory(
            f"a KV cache of {budget:,} bytes does not fit, {free_bytes:,} bytes of memory are "
            "free: lower kv_cache_bytes"
        )
    return blocks


def _block_bytes(model: LoadedModel, config: EngineConfig) -> int:
    """Bytes of one KV block: keys and values of its tokens in all layers."""
    shape = model.config
    numbers = 2 * shape.layers * shape.kv_heads * shape.head_dim * config.block_size
    return numbers * model.decoder.kv_dtype.itemsize


def _check_sliding(sliding: Sliding, length: int, *, on_host: bool) -> None:
    """Raise `ModelError` if dialogues cannot go on for ever on this device, in this length."""
    if not on_host:
        raise ModelError(
            "sliding_window works on the CPU only so far: set device to 'cpu', or sliding_window "
            "to null"
        )
    if sliding.room > length:
        raise ModelError(
            f"sliding_window and sink_tokens need room for {sliding.room} tokens (a quarter of the "
            f"window more than they keep), the model has {length} positions: lower sliding_window"
        )


def kv_summary(engine: Engine, model: LoadedModel | ScriptedModel, config: EngineConfig) -> str:
    """One line for people: how large the KV pool is."""
    blocks = int(engine.gauges["blocks_total"])
    tokens = blocks * config.block_size
    if isinstance(model, ScriptedModel):
        return f"KV pool: {blocks:,} blocks = {tokens:,} tokens (scripted, no memory behind it)"
    mib = blocks * _block_bytes(model, config) / (1 << 20)
    return f"KV pool: {blocks:,} blocks of {config.block_size} = {tokens:,} tokens, {mib:,.0f} MiB"
