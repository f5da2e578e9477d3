"""The one hand-written decoder: Llama and everything of its shape."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from engine.errors import ModelError
from engine.kv.cache import KVCache
from engine.models.config import ModelConfig
from engine.plan import ForwardBatch
from kernels.cpu.attention import PagedAttention
from kernels.cpu.int8 import Int8Gate, Int8Linear
from kernels.cpu.linear import PackedGate, PackedLinear
from kernels.cpu.tree_attention import TreeAttention
from kernels.reference import rms_norm, rope, rope_tables, store_kv

if TYPE_CHECKING:
    from engine.weights.checkpoint import Checkpoint
    from engine.weights.fetch import Progress


Linear = PackedLinear | Int8Linear
Gate = PackedGate | Int8Gate
Numerics = Literal["exact", "bf16", "fast"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer. Q, K and V are one product, the activation is part of the others."""

    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None  # Qwen 3 normalises each head of Q and K
    k_norm: torch.Tensor | None
    output: Linear
    ffn_norm: torch.Tensor
    gate: Gate
    down: Linear


class Decoder:
    """Turns token rows into logits, over a paged cache.

    In float32 a row's result does not depend, to the bit, on the other rows of the batch, on how
    its prompt was cut into batches, or on where its KV lies. In bfloat16 what many rows read is
    read once for all of them, and the last bits of a row depend on its company.

    Attributes:
        config: the model's shape.
        kv_dtype: what the cache must store.
    """

    def __init__(
        self,
        config: ModelConfig,
        embedding: torch.Tensor,
        layers: tuple[_Layer, ...],
        norm: torch.Tensor,
        head: Linear,
    ) -> None:
        self.config = config
        self.kv_dtype = embedding.dtype
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._cos, self._sin = rope_tables(config.rope_frequencies, config.max_len)

    @classmethod
    def load(
        cls,
        checkpoint: "Checkpoint",
        numerics: Numerics,
        progress: "Progress | None" = None,
    ) -> "Decoder":
        """Read and pack a checkpoint's weights, layer by layer.

        Raises:
            ModelError: a tensor is missing, or has not the size the config says.
        """
        config = checkpoint.config
        weights = _Weights(checkpoint, numerics)
        embedding = weights.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden)
        layers = []
        for number in range(config.layers):
            layers.append(weights.layer(number))
            if progress:
                progress("weights", number + 1, config.layers)
        norm = weights.tensor("model.norm.weight", config.hidden)
        table = "model.embed_tokens" if config.tied else "lm_head"
        head = weights.linear([table], config.vocab_size, config.hidden)
        return cls(config, embedding, tuple(layers), norm, head)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Store the batch's KV in `cache` and compute logits.

        Returns:
            float32 [len(batch.logit_rows), vocab].
        """
        config, eps = self.config, self.config.norm_eps
        rows, heads, kv_heads, dim = (
            len(batch.tokens),
            config.heads,
            config.kv_heads,
            config.head_dim,
        )
        attention: PagedAttention | TreeAttention
        if self.kv_dtype == torch.float32:
            attention = PagedAttention(batch.spans, heads, kv_heads, cache.keys.shape[2])
        else:
            attention = TreeAttention(batch.spans, heads, kv_heads)
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        x = self._embedding[batch.tokens]  # [rows, hidden]
        for number, layer in enumerate(self._layers):
            keys, values = cache.keys[number], cache.values[number]
            qkv = layer.qkv(rms_norm(x, layer.attention_norm, eps)).view(rows, -1, dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                q = rms_norm(qkv[:, :heads], layer.q_norm, eps)
                k = rms_norm(qkv[:, heads : heads + kv_heads], layer.k_norm, eps)
                qk = rope(torch.cat((q, k), 1), cos, sin)
            else:
                qk = rope(qkv[:, : heads + kv_heads], cos, sin)
            store_kv(keys, values, batch.slots, qk[:, heads:], qkv[:, heads + kv_heads :])
            attended = attention(qk[:, :heads].to(self.kv_dtype), keys, values)
            x = layer.output.plus(attended, x)
            x = layer.down.plus(layer.gate(rms_norm(x, layer.ffn_norm, eps)), x)
        wanted = rms_norm(x[batch.logit_rows], self._norm, eps)
        return self._head(wanted).float()


class _Weights:
    """Reads a checkpoint's tensors as the decoder wants them, and checks their sizes."""

    def __init__(self, checkpoint: "Checkpoint", numerics: Numerics) -> None:
        self._checkpoint = checkpoint
        self._numerics = numerics
        self._dtype = torch.float32 if numerics == "exact" else torch.bfloat16

    def layer(self, number: int) -> _Layer:
        """Weights of layer `number`."""
        config, prefix = self._checkpoint.config, f"model.layers.{number}"
        inner = config.heads * config.head_dim
        q_norm, k_norm = (f"{prefix}.self_attn.{side}_norm.weight" for side in "qk")
        normed = q_norm in self._checkpoint
        return _Layer(
            attention_norm=self.tensor(f"{prefix}.input_layernorm.weight", config.hidden),
            qkv=self.linear(
                [f"{prefix}.self_attn.{part}_proj" for part in "qkv"],
                inner + 2 * config.kv_heads * config.head_dim,
                config.hidden,
            ),
            q_norm=self.tensor(q_norm, config.head_dim) if normed else None,
            k_norm=self.tensor(k_norm, config.head_dim) if normed else None,
            output=self.linear([f"{prefix}.self_attn.o_proj"], config.hidden, inner),
            ffn_norm=self.tensor(f"{prefix}.post_attention_layernorm.weight", config.hidden),
            gate=self.gate(
                [f"{prefix}.mlp.{part}_proj" for part in ("gate", "up")],
                2 * config.ffn,
                config.hidden,
            ),
            down=self.linear([f"{prefix}.mlp.down_proj"], config.hidden, config.ffn),
        )

    def linear(self, names: list[str], rows: int, columns: int) -> Linear:
        """The projections `names`, stacked: [rows, columns] together."""
        stacked = self._stacked(names, rows, columns)
        return Int8Linear(*stacked) if self._numerics == "fast" else PackedLinear(*stacked)

    def gate(self, names: list[str], rows: int, columns: int) -> Gate:
        """Gate and up projection, stacked: [rows, columns] together."""
        stacked = self._stacked(names, rows, columns)
        return Int8Gate(*stacked) if self._numerics == "fast" else PackedGate(*stacked)

    def _stacked(
        self, names: list[str], rows: int, columns: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weights one below the other, and biases where the model has them."""
        weight = torch.cat([self._checkpoint.tensor(f"{name}.weight") for name in names])
        self._check(" + ".join(f"{name}.weight" for name in names), weight, (rows, columns))
        bias = None
        if f"{names[0]}.bias" in self._checkpoint:
            bias = torch.cat([self._checkpoint.tensor(f"{name}.bias") for name in names])
            bias = bias.to(self._dtype)
        return weight.to(self._dtype), bias

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor of this shape."""
        tensor = self._checkpoint.tensor(name)
        self._check(name, tensor, shape)
        return tensor.to(self._dtype)

    def _check(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self._checkpoint.source}: {name} is {list(tensor.shape)}, "
                f"the config says {list(shape)}"
            )
