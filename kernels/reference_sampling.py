"""What the sampling kernel computes, in plain torch and one row at a time."""

import numpy as np
import numpy.typing as npt
import torch

_MASK = (1 << 64) - 1


def sample_row(
    logits: torch.Tensor, entry: npt.NDArray[np.int32], seen: set[int], position: int
) -> int:
    """The token drawn from `logits` [vocab] for a row of the sampling table.

    Args:
        logits: any float type; computed in float64.
        entry: parameters, see `kernels.gpu.sampling.PARAMETERS`.
        seen: tokens that a repetition penalty applies to.
        position: of the token to be drawn.
    """
    temperature, top_p, min_p, penalty = entry[:4].view(np.float32).tolist()
    top_k = int(entry[4])
    low, high = entry[5:7].view(np.uint32).tolist()
    scores = logits.double()
    if int(entry[7]) >= 0 and seen:
        index = torch.tensor(sorted(seen))
        values = scores[index]
        scores[index] = torch.where(values > 0, values / penalty, values * penalty)
    if temperature == 0:
        return int(scores.argmax())
    weights = ((scores - scores.max()) / temperature).exp()
    kept = torch.ones_like(weights, dtype=torch.bool)
    ordered = weights.sort(descending=True).values
    if 0 < top_k < len(weights):
        kept &= weights >= ordered[top_k - 1]
    if top_p < 1:
        left = ordered[: int(kept.sum())]
        last = int((left.cumsum(0) < top_p * left.sum()).sum())
        kept &= weights >= left[min(last, len(left) - 1)]
    kept &= weights >= min_p
    weights = torch.where(kept, weights, 0.0)
    target = uniform(high << 32 | low, position) * weights.sum()
    return int((weights.cumsum(0) > target).nonzero()[0, 0])


def uniform(seed: int, counter: int) -> float:
    """A number in (0, 1) that depends on nothing but its arguments: 23 bits of SplitMix64."""
    z = (seed * 0x9E3779B97F4A7C15 + (counter + 1) * 0xD1B54A32D192ED03) & _MASK
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return ((z >> 41) + 0.5) / (1 << 23)
