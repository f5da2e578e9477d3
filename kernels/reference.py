"""What every kernel computes, in plain torch. These are the definitions; fast ones are tested
against them.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F


class SpanLike(Protocol):
    """Rows [start, end) of a batch are the last ones of a context of `context` tokens, stored in
    `runs` of (first slot, length) that follow one another.
    """

    @property
    def start(self) -> int:
        """First row."""

    @property
    def end(self) -> int:
        """Row after the last."""

    @property
    def context(self) -> int:
        """Tokens of the context, the span's rows included."""

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Where the context is stored."""

    @property
    def shared(self) -> tuple[tuple[int, int], ...]:
        """(key, length) of the pieces the context begins with, which all rows see whole. Pieces of
        one key are stored in one place.
        """


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Each vector of `x` [..., dim] by its root mean square, times `weight` [dim]; computed in
    float32, rounded to the dtype of `x`.
    """
    return F.rms_norm(x, weight.shape, weight, eps)


def rope_tables(
    frequencies: Sequence[float], length: int, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines times `scale` for `rope`, float32 [length, dim]; the first half of a row's
    sines is negated.
    """
    angles = torch.arange(length, dtype=torch.float32)[:, None] * torch.tensor(frequencies)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (i, i + dim/2) of `x` [rows, heads, dim] by the row's angle; float32.

    `cos`, `sin` are rows of `rope_tables`, [rows, dim]. If they are narrower than `x`, what is
    behind their width stays as it is.
    """
    if (width := cos.shape[-1]) < x.shape[-1]:
        return torch.cat((rope(x[..., :width], cos, sin), x[..., width:].float()), -1)
    swapped = x.roll(x.shape[-1] // 2, -1)
    return x * cos[:, None] + swapped * sin[:, None]


def rotated_back(keys: torch.Tensor, frequencies: Sequence[float], by: int) -> torch.Tensor:
    """`keys` [kv_heads, tokens, dim] that were rotated at some positions, as if each had been lower
    by `by`; float32.

    Rotations add up, so nothing but rounding is lost; a factor in `rope_tables` stays in them.
    """
    angles = torch.tensor(frequencies, dtype=torch.float64) * -by
    cos, sin = angles.cos().float(), angles.sin().float()
    return rope(keys, torch.cat((cos, cos))[None], torch.cat((-sin, sin))[None])


def store_kv(
    keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Write `k`, `v` [rows, kv_heads, dim] to `slots` [rows] of one layer's `keys`, `values`
    [kv_heads, slots, dim].
    """
    keys.index_copy_(1, slots, k.transpose(0, 1).to(keys.dtype))
    values.index_copy_(1, slots, v.transpose(0, 1).to(values.dtype))


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    spans: Sequence[SpanLike],
    *,
    window: int = 0,
    cap: float = 0.0,
    scale: float | None = None,
) -> torch.Tensor:
    """Causal attention of `q` [rows, heads, dim] over the context of each row's span.

    Query heads h·g … h·g + g - 1 share KV head h, where g is heads / kv_heads.

    Args:
        q: queries.
        keys, values: [kv_heads, slots, dim], one layer of the cache.
        spans: which rows see what.
        window: tokens a row sees, itself included; 0 is all.
        cap: scores s become cap · tanh(s / cap); 0 leaves them.
        scale: of the scores; None is 1/√dim.

    Returns:
        float32 [rows, heads, dim].
    """
    group = q.shape[1] // keys.shape[0]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    out = torch.empty(q.shape, dtype=torch.float32)
    for span in spans:
        slots = torch.cat([torch.arange(first, first + count) for first, count in span.runs])
        k = keys[:, slots].float().repeat_interleave(group, 0)
        v = values[:, slots].float().repeat_interleave(group, 0)
        rows = q[span.start : span.end].float().transpose(0, 1)
        visible = torch.ones(span.end - span.start, span.context, dtype=torch.bool)
        visible = visible.tril(span.context - (span.end - span.start))
        if window:
            visible = visible.triu(span.context - (span.end - span.start) - window + 1)
        scores = rows @ k.transpose(1, 2) * scale
        if cap:
            scores = cap * torch.tanh(scores / cap)
        scores = scores.masked_fill(~visible, float("-inf"))
        out[span.start : span.end] = (scores.softmax(-1) @ v).transpose(0, 1)
    return out


def silu_gate(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of `gate_up` [rows, 2·ffn], gate first."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up
