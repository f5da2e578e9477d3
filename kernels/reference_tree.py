"""What tree attention computes, item by item, in plain torch."""

import numpy as np
import torch

from kernels.tree_work import Work

_Seen = tuple[torch.Tensor, torch.Tensor]


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
    """Partial results of items, merged row by row, and chains as they are read.

    All in the precision of the arguments.

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

    def scores(members: torch.Tensor, first_block: int, start: int, begin: int, end: int) -> _Seen:
        """Scores of some rows over a stretch of a piece, and the values they weigh."""
        tokens = np.arange(begin, end)
        slots = torch.from_numpy(
            work.blocks[first_block + tokens // block_size].astype(np.int64) * block_size
            + tokens % block_size
        )
        k = keys[:, slots].repeat_interleave(group, 0)
        v = values[:, slots].repeat_interleave(group, 0)
        found = torch.einsum("rhd,htd->rht", q[members], k) * factor
        if soft_cap:
            found = soft_cap * torch.tanh(found / soft_cap)
        visible = positions[members] + 1 - start
        token = torch.from_numpy(tokens)
        seen = token < visible[:, None]
        if window:
            seen &= token >= visible[:, None] - window
        return found.masked_fill(~seen[:, None], float("-inf")), v

    heads, dim = q.shape[1:]
    group = heads // keys.shape[0]
    factor = dim**-0.5 if scale is None else scale
    partials = q.new_full((work.partials, heads, dim), float("nan"))
    weights = q.new_full((work.partials, heads), float("nan"))
    for item in np.concatenate((work.small, work.large)).tolist():
        first_row, size, first_block, piece_start, begin, end, part = item
        members = torch.from_numpy(work.rows[first_row : first_row + size].astype(np.int64))
        found, v = scores(members, first_block, piece_start, begin, end)
        weight = found.logsumexp(-1)
        shares = (found - weight[..., None]).exp().nan_to_num(0.0)
        partials[part : part + size] = torch.einsum("rht,htd->rhd", shares, v)
        weights[part : part + size] = weight
    out = torch.zeros_like(q)
    for row in work.merged.tolist():
        first, count = int(work.part_first[row]), int(work.part_count[row])
        if count:
            mine = torch.from_numpy(work.parts[first : first + count].astype(np.int64))
            share = weights[mine].softmax(0).nan_to_num(0.0)
            out[row] = (share[..., None] * partials[mine]).sum(0)
    for first, size, link, links in work.reading.tolist():
        members = torch.arange(first, first + size)
        chain = work.links[link : link + links].tolist()
        stretches = [scores(members, at, start, 0, length) for at, start, length in chain]
        share = torch.cat([found for found, _ in stretches], -1).softmax(-1)
        v = torch.cat([v for _, v in stretches], 1)
        out[members] = torch.einsum("rht,htd->rhd", share, v)
    return out
