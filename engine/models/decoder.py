"""The one hand-written decoder: Llama and the families that grew from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from engine.errors import ModelError
from engine.kv.cache import KVCache
from engine.models.config import ModelConfig
from engine.models.layout import lay_out
from engine.plan import ForwardBatch, SequenceStep
from engine.weights.checkpoint import sized
from kernels.cpu.attention import PagedAttention
from kernels.cpu.int8 import Int8Gate, Int8Linear
from kernels.cpu.linear import PackedGate, PackedLinear
from kernels.cpu.tree_attention import TreeAttention
from kernels.reference import rms_norm, rope, rope_tables, rotated_back, store_kv

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
    attended_norm: torch.Tensor | None  # Gemma 2 normalises what attention adds, too
    ffn_norm: torch.Tensor
    gate: Gate
    down: Linear
    down_norm: torch.Tensor | None


class Decoder:
    """Turns token rows into logits, over a paged cache.

    In float32 a row's result does not depend, to the bit, on the other rows of the batch, on how
    its prompt was cut into batches, or on where its KV lies. In bfloat16 what many rows read is
    read once for all of them, and the last bits of a row depend on its company.

    Attributes:
        config: the model's shape.
        kv_dtype: what the cache must store.
    """

    block_multiple = 1

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
        # How keys of each layer are rotated, and the tables for it; layers often share them.
        self._turns = [_turn(config, layer) for layer in range(config.layers)]
        self._tables = {
            frequencies: rope_tables(frequencies, config.max_len, config.rope_scale)
            for frequencies in set(self._turns)
            if frequencies
        }

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

    def compute(self, sequences: Sequence[SequenceStep], cache: KVCache) -> torch.Tensor:
        """See `engine.runner.HostDecoder.compute`."""
        for share in sequences:
            if share.moved:
                self._move_keys(cache, share.moved, share.moved_by)
        return self.forward(lay_out(sequences, cache.block_size), cache)

    def parts(self) -> dict[str, float]:
        """See `engine.runner.HostDecoder.parts`: unknown here."""
        return {}

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
        attentions: dict[int, PagedAttention | TreeAttention] = {}
        longest = max(span.context for span in batch.spans)
        rotations = {
            turn: (cos[batch.positions], sin[batch.positions])
            for turn, (cos, sin) in self._tables.items()
        }
        x = self._embedding[batch.tokens]  # [rows, hidden]
        if config.embedding_scale != 1:
            x = x * config.embedding_scale
        for number, layer in enumerate(self._layers):
            keys, values = cache.keys[number], cache.values[number]
            window = config.window(number)
            window = window if window < longest else 0  # one plan for all that see everything
            attention = attentions.get(window)
            if attention is None:
                attention = attentions[window] = self._attention(batch, cache, window)
            qkv = layer.qkv(rms_norm(x, layer.attention_norm, eps)).view(rows, -1, dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                q = rms_norm(qkv[:, :heads], layer.q_norm, eps)
                k = rms_norm(qkv[:, heads : heads + kv_heads], layer.k_norm, eps)
                qk = torch.cat((q, k), 1)
            else:
                qk = qkv[:, : heads + kv_heads]
            if turn := self._turns[number]:
                qk = rope(qk, *rotations[turn])
            store_kv(keys, values, batch.slots, qk[:, heads:], qkv[:, heads + kv_heads :])
            attended = attention(qk[:, :heads].to(self.kv_dtype), keys, values)
            x = _add(x, layer.output, attended, layer.attended_norm, eps)
            gated = layer.gate(rms_norm(x, layer.ffn_norm, eps))
            x = _add(x, layer.down, gated, layer.down_norm, eps)
        for start, end, take in batch.states:
            take(rms_norm(x[start:end], self._norm, eps))
        logits = self._head(rms_norm(x[batch.logit_rows], self._norm, eps)).float()
        if config.logit_cap:
            logits = config.logit_cap * torch.tanh(logits / config.logit_cap)
        return logits

    def _move_keys(self, cache: KVCache, blocks: Sequence[int], by: int) -> None:
        """Rotate the keys in `blocks` back by `by` positions, in all layers."""
        size = cache.block_size
        slots = (torch.tensor(blocks)[:, None] * size + torch.arange(size)).view(-1)
        for keys, turn in zip(cache.keys, self._turns, strict=True):
            if turn:
                moved = rotated_back(keys.index_select(1, slots), turn, by)
                keys.index_copy_(1, slots, moved.to(keys.dtype))

    def _attention(
        self, batch: ForwardBatch, cache: KVCache, window: int
    ) -> PagedAttention | TreeAttention:
        """The batch's attention in layers with this window."""
        config = self.config
        heads, kv_heads, cap, scale = (
            config.heads,
            config.kv_heads,
            config.score_cap,
            config.score_scale,
        )
        if self.kv_dtype != torch.float32:
            return TreeAttention(batch.spans, heads, kv_heads, window=window, cap=cap, scale=scale)
        slots = cache.keys.shape[2]
        return PagedAttention(
            batch.spans, heads, kv_heads, slots, window=window, cap=cap, scale=scale
        )


def _turn(config: ModelConfig, layer: int) -> tuple[float, ...]:
    """Frequencies with which the keys of a layer rotate; () if they do not."""
    if layer in config.unrotated_layers:
        return ()
    local = config.local_rope_frequencies if config.window(layer) else ()
    return local or config.rope_frequencies


def _add(
    x: torch.Tensor, linear: Linear, y: torch.Tensor, norm: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """`x` plus the product of `y`, normalised in between where the model does."""
    if norm is None:
        return linear.plus(y, x)
    return x + rms_norm(linear(y), norm, eps)


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
        # The same name stands for another norm in models that have more of them.
        after = f"{prefix}.post_attention_layernorm.weight"
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
            attended_norm=self.tensor(after, config.hidden) if config.post_norms else None,
            ffn_norm=self.tensor(
                f"{prefix}.pre_feedforward_layernorm.weight" if config.post_norms else after,
                config.hidden,
            ),
            gate=self.gate(
                [f"{prefix}.mlp.{part}_proj" for part in ("gate", "up")],
                2 * config.ffn,
                config.hidden,
            ),
            down=self.linear([f"{prefix}.mlp.down_proj"], config.hidden, config.ffn),
            down_norm=self.tensor(f"{prefix}.post_feedforward_layernorm.weight", config.hidden)
            if config.post_norms
            else None,
        )

    def linear(self, names: list[str], rows: int, columns: int) -> Linear:
        """The projections `names`, stacked: [rows, columns] together."""
        stacked = self._stacked(names, rows, columns)
        return Int8Linear(*stacked) if self._numerics == "fast" else PackedLinear(*stacked)

    def gate(self, names: list[str], rows: int, columns: int) -> Gate:
        """Gate and up projection, stacked: [rows, columns] together."""
        activation = self._checkpoint.config.activation
        stacked = self._stacked(names, rows, columns)
        if self._numerics == "fast" and activation == "silu":
            return Int8Gate(*stacked)
        return PackedGate(*stacked, activation)

    def _stacked(
        self, names: list[str], rows: int, columns: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weights one below the other, and biases where the model has them."""
        weight = torch.cat([self._checkpoint.tensor(f"{name}.weight") for name in names])
        if tuple(weight.shape) != (rows, columns):
            stacked = " + ".join(f"{name}.weight" for name in names)
            raise ModelError(
                f"{self._checkpoint.source}: {stacked} is {list(weight.shape)}, "
                f"the config says {[rows, columns]}"
            )
        bias = None
        if f"{names[0]}.bias" in self._checkpoint:
            bias = torch.cat([self._checkpoint.tensor(f"{name}.bias") for name in names])
            bias = bias.to(self._dtype)
        return weight.to(self._dtype), bias

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor of this shape."""
        return sized(self._checkpoint, name, *shape).to(self._dtype)
