"""What tree attention computes, item by item, in plain torch."""

import numpy as np
import torch

from kernels.tree_work import Work


def tree_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    work: Work,
    positions: torch.Tensor,
    block_size: int,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
    scale: float | None = None,
) -> torch.Tensor:
    """Partial results of every item, merged row by row, in the precision of the arguments.

    Args:
        q: [rows, heads, dim].
        keys, values: [kv_heads, slots, dim].
        work: the items.
        positions: [rows].
        window: tokens a row sees, itself included; 0 is all.
        soft_cap: scores s become soft_cap · tanh(s / soft_cap); 0 leaves them.
        scale: of the scores; None is 1/√dim.

    Returns:
        [rows, heads, dim]; zero for rows without work.
    """
    rows, heads, dim = q.shape
    group = heads // keys.shape[0]
    scale = dim**-0.5 if scale is None else scale
    partials = q.new_full((work.partials, heads, dim), float("nan"))
    weights = q.new_full((work.partials, heads), float("nan"))
    for item in np.concatenate((work.small, work.large, work.reading)).tolist():
        first_row, size, first_block, piece_start, begin, end, part, _ = item
        members = torch.from_numpy(work.rows[first_row : first_row + size].astype(np.int64))
        tokens = np.arange(begin, end)
        slots = torch.from_numpy(
            work.blocks[first_block + tokens // block_size].astype(np.int64) * block_size
            + tokens % block_size
        )
        k = keys[:, slots].repeat_interleave(group, 0)
        v = values[:, slots].repeat_interleave(group, 0)
        scores = torch.einsum("rhd,htd->rht", q[members], k) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        visible = positions[members] + 1 - piece_start
        token = torch.from_numpy(tokens)
        seen = token < visible[:, None]
        if window:
            seen &= token >= visible[:, None] - window
        scores = scores.masked_fill(~seen[:, None], float("-inf"))
        weight = scores.logsumexp(-1)
        shares = (scores - weight[..., None]).exp().nan_to_num(0.0)
        partials[part : part + size] = torch.einsum("rht,htd->rhd", shares, v)
        weights[part : part + size] = weight
    out = torch.zeros_like(q)
    for row in range(rows):
        first, count = int(work.part_first[row]), int(work.part_count[row])
        if count:
            mine = torch.from_numpy(work.parts[first : first + count].astype(np.int64))
            share = weights[mine].softmax(0).nan_to_num(0.0)
            out[row] = (share[..., None] * partials[mine]).sum(0)
    return out
