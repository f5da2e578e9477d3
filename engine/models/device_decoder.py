"""The decoder of `engine.models.decoder` on an accelerator: same layers, fused kernels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from engine.config import Quantization
from engine.device.tables import StepSize, StepTables
from engine.errors import ModelError
from engine.kv.cache import KVCache
from engine.models.config import ModelConfig
from engine.plan import StatesSink
from engine.weights.checkpoint import sized
from kernels.gpu import fp8
from kernels.gpu.fp8 import Fp8
from kernels.gpu.layers import add_rms_norm, embed, rms_norm, rope_store, silu_gate
from kernels.gpu.linear import MOST_ROWS, gated_linear, linear
from kernels.gpu.tree_attention import TreeAttention
from kernels.reference import rope_tables

if TYPE_CHECKING:
    from engine.weights.checkpoint import Checkpoint
    from engine.weights.fetch import Progress

#: Standard deviation of random weights: that of most models at initialisation.
_RANDOM_SCALE = 0.02
#: What a model may have beyond a Llama; see `ModelConfig`.
_KNOWN = {
    "rope_scale",
    "short_rope_frequencies",
    "short_len",
    "local_rope_frequencies",
    "windows",
    "embedding_scale",
    "score_scale",
    "score_cap",
    "logit_cap",
}
#: The first compute capability with 8-bit floating point products.
_FP8_CAPABILITY = (8, 9)
#: Tensors by their name in a checkpoint and their shape.
Source = Callable[[str, tuple[int, ...]], torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer. Q, K and V are one product, gate and up another."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor | Fp8
    qkv_bias: torch.Tensor | None
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    output: torch.Tensor | Fp8
    output_bias: torch.Tensor | None
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor | Fp8
    down: torch.Tensor | Fp8


class DeviceDecoder:
    """Turns token rows into logits, over a paged cache in device memory.

    The attention of a row does not depend on its batch mates to the bit; its matrix products may,
    because libraries choose their kernel by the number of rows.

    Attributes:
        config: the model's shape.
        kv_dtype: of weights, activations and cache.
        device: where they are.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: Source,
        dtype: torch.dtype,
        device: torch.device,
        *,
        quantization: Quantization | None = None,
    ) -> None:
        """Read all weights from `source`, which returns None for tensors a model need not have.

        Args:
            quantization: keep the weights of layers in so many bits.

        Raises:
            ModelError: the shape or the device is one for which there are no kernels.
        """
        if quantization == "fp8":
            _check_fp8(config, device)
        unknown = [name for name in config.extras() if name not in _KNOWN]
        if 2 * len(config.rope_frequencies) < config.head_dim:
            unknown.append("heads that rotate in part")
        if unknown:
            raise ModelError(
                f"models with {', '.join(unknown)} do not run on a GPU yet: set device to 'cpu'"
            )
        self.config = config
        self.kv_dtype = dtype
        self.device = device
        self._source = source
        self._quantization = quantization
        self._embedding = self._tensor(
            "model.embed_tokens.weight", config.vocab_size, config.hidden
        )
        self._layers = tuple(self._layer(number) for number in range(config.layers))
        self._norm = self._tensor("model.norm.weight", config.hidden)
        self._head = (
            self._embedding
            if config.tied
            else self._tensor("lm_head.weight", config.vocab_size, config.hidden)
        )
        self._rotation = self._turns(config.rope_frequencies)
        local = config.local_rope_frequencies
        self._local_rotation = self._turns(local) if local else self._rotation
        del self._source  # it may hold a whole checkpoint

    @classmethod
    def load(
        cls,
        checkpoint: "Checkpoint",
        dtype: torch.dtype,
        device: torch.device,
        progress: "Progress | None" = None,
        *,
        quantization: Quantization | None = None,
    ) -> "DeviceDecoder":
        """Read a checkpoint's weights tensor by tensor.

        Raises:
            ModelError: a tensor is missing, or has not the size the config says.
        """
        done = 0

        def source(name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
            nonlocal done
            if name not in checkpoint and name.endswith(("bias", "q_norm.weight", "k_norm.weight")):
                return None
            tensor = sized(checkpoint, name, *shape)
            if progress and name.endswith("down_proj.weight"):
                done += 1
                progress("weights", done, checkpoint.config.layers)
            return tensor.to(device, dtype)

        return cls(checkpoint.config, source, dtype, device, quantization=quantization)

    @classmethod
    def random(
        cls,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
        *,
        quantization: Quantization | None = None,
    ) -> "DeviceDecoder":
        """A model of this shape with random weights and no biases, made on the device."""
        generator = torch.Generator(device).manual_seed(seed)

        def source(name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
            if name.endswith(("bias", "q_norm.weight", "k_norm.weight")):
                return None
            if name.endswith("norm.weight"):
                return torch.ones(shape, dtype=dtype, device=device)
            tensor = torch.empty(shape, dtype=dtype, device=device)
            return tensor.normal_(0, _RANDOM_SCALE, generator=generator)

        return cls(config, source, dtype, device, quantization=quantization)

    def forward(
        self,
        tables: StepTables,
        size: StepSize,
        drawn: torch.Tensor,
        cache: KVCache,
        attention: Mapping[int, TreeAttention],
        partials: tuple[torch.Tensor, torch.Tensor],
        side: torch.cuda.Stream | None = None,
        states: Sequence[tuple[int, int, StatesSink]] = (),
    ) -> torch.Tensor:
        """Store the step's KV in `cache` and compute logits.

        Args:
            tables: the step; on a captured step what they hold at replay counts.
            size: how much the step computes, padding included.
            drawn: int32, tokens drawn by the step before.
            cache: keys and values.
            attention: kernels, by the window of the layers they are for.
            partials: room for their partial results.
            side: stream for what may run beside the rest.
            states: rows whose final hidden states are wanted, and by whom.

        Returns:
            `kv_dtype` [samples, vocab].
        """
        config, eps = self.config, self.config.norm_eps
        rows, samples = size.rows, size.samples
        work = tables.work(size)
        positions = tables.section("positions", rows)
        residual = embed(tables.section("ids", rows), drawn, self._embedding)
        if config.embedding_scale != 1:
            residual = residual * config.embedding_scale
        normed = rms_norm(residual, self._layers[0].attention_norm, eps)
        attended = residual.new_empty(rows, config.heads, config.head_dim)
        following = [layer.attention_norm for layer in self._layers[1:]] + [self._norm]
        drawing = None if size.aligned else tables.section("sample_rows", samples).clamp(min=0)
        # The others end with the last layer's keys and values, unless somebody wants their states.
        going_on = drawing if samples < rows and not states else None
        for number, layer in enumerate(self._layers):
            keys, values = cache.keys[number], cache.values[number]
            window = config.window(number)
            q = rope_store(
                _product(normed, layer.qkv, layer.qkv_bias),
                self._local_rotation if window else self._rotation,
                positions,
                tables.section("piece_start", rows),
                tables.section("piece_blocks", rows),
                work.blocks,
                keys,
                values,
                heads=config.heads,
                block_size=cache.block_size,
                head_norms=layer.head_norms,
                eps=eps,
            )
            last = number == config.layers - 1
            if last and going_on is not None and not samples:
                break
            attention[window](q, keys, values, work, *partials, attended, side=side)
            if last and going_on is not None:
                attended = attended.index_select(0, going_on)
                residual = residual.index_select(0, going_on)
            mixed = _product(attended.view(len(attended), -1), layer.output, layer.output_bias)
            normed = add_rms_norm(mixed, residual, layer.ffn_norm, eps)
            mixed = _feed_forward(normed, layer)
            normed = add_rms_norm(mixed, residual, following[number], eps)
        for start, end, take in states:
            take(normed[start:end])
        if not samples:
            return normed.new_empty(0, config.vocab_size)
        if drawing is not None and going_on is None:
            normed = normed.index_select(0, drawing)
        few = samples <= MOST_ROWS
        logits = linear(normed, self._head) if few else F.linear(normed, self._head)
        if config.logit_cap:
            logits = config.logit_cap * torch.tanh(logits / config.logit_cap)
        return logits

    def _turns(self, frequencies: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of a head's pairs, float32 [positions, head_dim / 2] each."""
        config, half = self.config, self.config.head_dim // 2
        cos, sin = rope_tables(frequencies, config.max_len, config.rope_scale)
        return (
            cos[:, :half].contiguous().to(self.device),
            sin[:, half:].contiguous().to(self.device),
        )

    def _layer(self, number: int) -> _Layer:
        config, prefix = self.config, f"model.layers.{number}"
        inner, width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        sizes = {"q": inner, "k": width, "v": width}
        norms = [
            self._source(f"{prefix}.self_attn.{side}_norm.weight", (config.head_dim,))
            for side in "qk"
        ]
        biases = [
            self._source(f"{prefix}.self_attn.{side}_proj.bias", (size,))
            for side, size in sizes.items()
        ]
        q_norm, k_norm = norms
        return _Layer(
            attention_norm=self._tensor(f"{prefix}.input_layernorm.weight", config.hidden),
            qkv=self._kept(
                *(
                    self._tensor(f"{prefix}.self_attn.{side}_proj.weight", size, config.hidden)
                    for side, size in sizes.items()
                )
            ),
            qkv_bias=torch.cat([b for b in biases if b is not None])
            if any(b is not None for b in biases)
            else None,
            head_norms=(q_norm, k_norm) if q_norm is not None and k_norm is not None else None,
            output=self._kept(
                self._tensor(f"{prefix}.self_attn.o_proj.weight", config.hidden, inner)
            ),
            output_bias=self._source(f"{prefix}.self_attn.o_proj.bias", (config.hidden,)),
            ffn_norm=self._tensor(f"{prefix}.post_attention_layernorm.weight", config.hidden),
            gate_up=self._kept(
                *(
                    self._tensor(f"{prefix}.mlp.{part}_proj.weight", config.ffn, config.hidden)
                    for part in ("gate", "up")
                )
            ),
            down=self._kept(
                self._tensor(f"{prefix}.mlp.down_proj.weight", config.hidden, config.ffn)
            ),
        )

    def _kept(self, *weights: torch.Tensor) -> torch.Tensor | Fp8:
        """Weights one above the other, as they are kept."""
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        return fp8.quantise_weight(weight) if self._quantization == "fp8" else weight

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._source(name, shape)
        if tensor is None:
            raise ModelError(f"the model has no tensor {name}")
        return tensor


def _check_fp8(config: ModelConfig, device: torch.device) -> None:
    """Raise `ModelError` if the library has no 8-bit products for this."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise ModelError("quantization 'fp8' needs an NVIDIA GPU of the year 2022 or later")
    sizes = (config.hidden, config.ffn, config.heads * config.head_dim)
    if any(size % 16 for size in sizes):
        raise ModelError(f"quantization 'fp8' wants sizes that 16 divides, this model has {sizes}")


def _product(
    x: torch.Tensor, weight: torch.Tensor | Fp8, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """A product, in parts if there are few rows; whoever takes it adds them up."""
    if isinstance(weight, Fp8):
        mixed = fp8.product(fp8.quantise(x), weight, x.dtype)
        return mixed if bias is None else mixed.add_(bias)
    if len(x) <= MOST_ROWS:
        return linear(x, weight, bias, in_parts=True)
    return F.linear(x, weight, bias)


def _feed_forward(x: torch.Tensor, layer: _Layer) -> torch.Tensor:
    """The product of the layer's gated middle, as of `_product`."""
    gate_up, down = layer.gate_up, layer.down
    if isinstance(gate_up, Fp8) and isinstance(down, Fp8):
        opened = fp8.product(fp8.quantise(x), gate_up, x.dtype)
        return fp8.product(fp8.quantise(opened, gated=True), down, x.dtype)
    assert isinstance(gate_up, torch.Tensor) and isinstance(down, torch.Tensor)
    if len(x) <= MOST_ROWS:
        return linear(gated_linear(x, gate_up), down, in_parts=True)
    return F.linear(silu_gate(F.linear(x, gate_up)), down)
