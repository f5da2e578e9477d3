"""The decoder for all numerics but `exact`: a team of threads that calls the compiled pass."""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from engine.kv.cache import KVCache
from engine.models.config import ModelConfig
from engine.native.layout import lay_out
from engine.native.weights import read_weights
from engine.plan import Segment, SequenceStep, wanted_states
from engine.prefixes import Prefix
from kernels.cpu.native.attending import BLOCK
from kernels.cpu.native.forward import forward
from kernels.cpu.native.products import BYTES, HALVES, NIBBLES
from kernels.cpu.native.tables import PARTS, Floats, Room, Shape, Weights, make_room
from kernels.cpu.native.vectors import LANES, has
from kernels.reference import rms_norm, rope_tables, rotated_back

if TYPE_CHECKING:
    from engine.weights.checkpoint import Checkpoint
    from engine.weights.fetch import Progress


NativeNumerics = Literal["bf16", "fast", "int4"]
#: How weights of the layers are kept.
_FORMS: dict[NativeNumerics, int] = {"bf16": HALVES, "fast": BYTES, "int4": NIBBLES}
#: Threads unless a number is asked for: this many read weights as fast as memory gives them, and
#: more of them meet more often.
_MOST_THREADS = 16
#: What a model may have beyond a Llama.
_EXTRAS = {"rope_scale", "unrotated_layers", "embedding_scale", "score_scale", "windows"}

#: Projections whose biases are not computed.
_UNBIASED = ("self_attn.o", "mlp.gate", "mlp.up", "mlp.down")


class NativeDecoder:
    """Turns a step's sequences into logits.

    A row's logits are the same to the bit whatever else is in the step, however its prompt was cut
    into steps, and wherever its KV lies.

    Attributes:
        config: the model's shape.
        kv_dtype: what the cache must store.
        block_multiple: what sizes of its blocks must be multiples of.
        threads: that compute a step together.
    """

    kv_dtype = torch.bfloat16
    block_multiple = BLOCK

    def __init__(
        self, config: ModelConfig, weights: Weights, *, form: int, threads: int | None = None
    ) -> None:
        self.config = config
        self.threads = threads or min(torch.get_num_threads(), _MOST_THREADS)
        self._weights = weights
        score_scale = config.head_dim**-0.5 if config.score_scale is None else config.score_scale
        self._shape = Shape(
            config.heads,
            config.kv_heads,
            config.head_dim,
            config.ffn,
            np.float32(config.norm_eps),
            np.float32(score_scale * math.log2(math.e)),
            np.float32(config.embedding_scale),
            form,
        )
        cos, sin = rope_tables(config.rope_frequencies, config.max_len, config.rope_scale)
        pairs = len(config.rope_frequencies)
        self._cos: Floats = np.ascontiguousarray(cos[:, :pairs].numpy())
        self._sin: Floats = np.ascontiguousarray(sin[:, pairs:].numpy())
        self._helpers = ThreadPoolExecutor(max(1, self.threads - 1), "troupe-forward")
        self._room = self._make_room(1, 1)
        self._seconds = 0.0

    @staticmethod
    def refuses(checkpoint: "Checkpoint", numerics: NativeNumerics) -> str:
        """Why a model cannot be computed this way on this machine; "" if it can.

        With bfloat16 weights AVX-512 suffices; 8-bit products need VNNI as well.
        """
        config = checkpoint.config
        if not has("avx512bw") or (numerics != "bf16" and not has("avx512vnni")):
            return "the processor has no AVX-512" + (" VNNI" if has("avx512bw") else "")
        if extras := set(config.extras()) - _EXTRAS:
            return f"the model has {', '.join(sorted(extras))}"
        if config.head_dim % LANES or config.ffn % LANES:
            return f"its widths are not multiples of {LANES}"
        biases = [f"model.layers.0.{name}_proj.bias" for name in _UNBIASED]
        if found := [name for name in biases if name in checkpoint]:
            return f"the model has {found[0]}"
        return ""

    @classmethod
    def load(
        cls,
        checkpoint: "Checkpoint",
        numerics: NativeNumerics,
        progress: "Progress | None" = None,
        threads: int | None = None,
    ) -> "NativeDecoder":
        """Read, round and lay out a checkpoint's weights, layer by layer.

        Raises:
            ModelError: a tensor is missing, or has not the size the config says.
        """
        form = _FORMS[numerics]
        weights = read_weights(checkpoint, form, progress)
        decoder = cls(checkpoint.config, weights, form=form, threads=threads)
        if progress:
            progress("compile", 0, 1)
        decoder._compile()
        if progress:
            progress("compile", 1, 1)
        return decoder

    def compute(self, sequences: Sequence[SequenceStep], cache: KVCache) -> torch.Tensor:
        """See `engine.runner.HostDecoder.compute`."""
        for share in sequences:
            if share.moved:
                self._move_keys(cache, share.moved, share.moved_by)
        batch = lay_out(
            sequences, cache.block_size, self._cos, self._sin, self.config.kv_heads, self.threads
        )
        samples = len(batch.wanted)
        if len(batch.tokens) > len(self._room.x) or samples > len(self._room.logits):
            self._room = self._make_room(len(batch.tokens), samples)
        room = self._room
        room.counters[:] = room.times[:] = 0
        began = time.perf_counter()
        threads = self.threads
        keys, values = (_bits(side) for side in (cache.keys, cache.values))
        part = partial(forward, self._weights, self._shape, batch, keys, values, room)
        helpers = [self._helpers.submit(part, number, threads) for number in range(1, threads)]
        part(0, threads)
        for helper in helpers:
            helper.result()
        self._seconds = time.perf_counter() - began
        norm = torch.from_numpy(self._weights.norm)
        for start, end, take in wanted_states(sequences):
            rows = torch.from_numpy(room.x[start:end, : self.config.hidden])
            take(rms_norm(rows, norm, self.config.norm_eps))
        return torch.from_numpy(room.logits[:samples, : self.config.vocab_size])

    def parts(self) -> dict[str, float]:
        """See `engine.runner.HostDecoder.parts`: as the first thread saw them, waiting included."""
        share = self._seconds / max(int(self._room.times.sum()), 1)
        ticks = self._room.times.tolist()
        return {name: count * share for name, count in zip(PARTS, ticks, strict=True)}

    def _compile(self) -> None:
        """Compile the forward pass, unless this machine has done so before: a step of one token."""
        shape = self.config
        sizes = (shape.layers, shape.kv_heads, shape.head_dim, 1, BLOCK)
        cache = KVCache(*sizes, self.kv_dtype, torch.device("cpu"))
        node = Prefix(0, None, (0,))
        self.compute([SequenceStep(node, (0,), 0, (Segment(0, (0,), 1),), True)], cache)

    def _move_keys(self, cache: KVCache, blocks: Sequence[int], by: int) -> None:
        """Rotate the keys in `blocks` back by `by` positions, in all layers."""
        per, heads, dim = cache.block_size // BLOCK, self.config.kv_heads, self.config.head_dim
        small = (torch.tensor(blocks)[:, None] * per + torch.arange(per)).view(-1)
        for layer, keys in enumerate(cache.keys):
            if layer in self.config.unrotated_layers:
                continue
            pairs = keys.view(heads, -1, dim // 2, BLOCK, 2)  # as `attending` keeps them
            found = pairs.index_select(1, small).transpose(2, 3).reshape(heads, -1, dim)
            moved = rotated_back(found, self.config.rope_frequencies, by).to(keys.dtype)
            moved = moved.view(heads, len(small), BLOCK, dim // 2, 2).transpose(2, 3)
            pairs.index_copy_(1, small, moved.contiguous())

    def _make_room(self, rows: int, samples: int) -> Room:
        """Scratch for so many rows at least, in powers of two so that it seldom grows."""
        config = self.config
        return make_room(
            self._shape,
            config.hidden,
            config.vocab_size,
            1 << (rows - 1).bit_length(),
            1 << (samples - 1).bit_length() if samples else 1,
            self.threads,
            config.layers,
        )


def _bits(side: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """Keys or values of the cache, [layers, kv_heads, blocks of 16, 16 · dim]."""
    layers, heads, slots, dim = side.shape
    bits: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]
    bits = side.view(torch.uint16).numpy().reshape(layers, heads, slots // BLOCK, BLOCK * dim)
    return bits
