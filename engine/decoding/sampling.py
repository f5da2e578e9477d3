"""Choosing the next token of each row.

Every row is treated by itself and its noise depends only on (seed, position), so a reply does not
depend on who else is in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.decoding.constraint import Constraint
from engine.decoding.penalties import LogitChanges
from engine.params import SamplingParams

Floats = npt.NDArray[np.floating]

#: Relative to the most likely token; below it a token hardly ever belongs to a top-p set.
_RARE = 1e-5
#: Below the highest logit: where the search for the top k begins, and where it gives up.
_MARGIN, _FAR = 4.0, 128.0
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """What is needed beside the logits to sample one row.

    Attributes:
        params: temperature, top-k, ….
        seed: of the request's noise.
        position: of the token to be drawn; the noise's counter.
        changes: penalties and bans, if the parameters ask for any.
        constraint: what a grammar allows, if there is one.
    """

    params: SamplingParams
    seed: int
    position: int
    changes: LogitChanges | None = None
    constraint: Constraint | None = None


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """The token drawn for one row.

    Attributes:
        token: its id.
        logprobs: natural logarithms of the model's probabilities (before temperature and filters)
            of the most likely tokens and of `token`, if asked for.
    """

    token: int
    logprobs: dict[int, float] | None = None


def sample(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[Sampled]:
    """One token per row.

    Args:
        logits: float32 [rows, vocab]; penalties change them in place.
        specs: one per row.
    """
    rows = logits.numpy()
    reported = [_logarithms(row) for row, spec in zip(rows, specs, strict=True) if _asks(spec)]
    for row, spec in zip(rows, specs, strict=True):
        unchanged = row
        if spec.changes is not None:
            unchanged = row if spec.constraint is None else row.copy()
            spec.changes.apply(row)
        if spec.constraint is not None:
            spec.constraint.restrict(row, unchanged)
    logarithms = iter(reported)
    result = []
    for row, spec in zip(rows, specs, strict=True):
        if spec.params.temperature == 0:
            token = int(row.argmax())
        elif spec.constraint is not None:
            # Often a grammar allows a handful of tokens: the others need not be weighed.
            allowed = np.flatnonzero(row > -np.inf)
            token = int(allowed[_draw(row[allowed], spec)])
        else:
            token = _draw(row, spec)
        if _asks(spec):
            result.append(Sampled(token, _top(next(logarithms), spec.params.logprobs or 0, token)))
        else:
            result.append(Sampled(token))
    return result


def _asks(spec: SampleSpec) -> bool:
    return spec.params.logprobs is not None


def _logarithms(row: Floats) -> Floats:
    """Log-probabilities of a row of logits, float64 [vocab]."""
    shifted = row.astype(np.float64) - row.max()
    logarithms: Floats = shifted - np.log(np.exp(shifted).sum())
    return logarithms


def _top(logarithms: Floats, count: int, token: int) -> dict[int, float]:
    """The `count` most likely tokens, most likely first, and `token`."""
    size = len(logarithms)
    likely = np.argpartition(logarithms, size - count - 1)[size - count :].tolist()
    ordered = sorted(likely, key=lambda index: -logarithms[index])
    return {index: float(logarithms[index]) for index in [*ordered, token]}


def uniform(seed: int, counter: int) -> float:
    """A number in (0, 1) that depends on nothing but its arguments (SplitMix64, Steele et al.
    2014).
    """
    z = (seed * 0x9E3779B97F4A7C15 + (counter + 1) * 0xD1B54A32D192ED03) & _MASK
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return ((z >> 11) + 0.5) / (1 << 53)


def _draw(row: Floats, spec: SampleSpec) -> int:
    """Draw from one row, float32 [vocab], after temperature, top-k, top-p and min-p, in that order.

    The weights that survive are inverted at a uniform number, in float64. Whole rows are only ever
    compared or summed, in float32, and by NumPy: the threads of a torch operation would wait for
    each other longer than they work.
    """
    params = spec.params
    highest = row.max()
    tokens, total = _likeliest(row, highest, params)
    weights = np.exp((row[tokens].astype(np.float64) - highest) / params.temperature)
    if params.top_k or params.top_p < 1 or params.min_p:
        order = np.argsort(-weights, kind="stable")[: params.top_k or len(tokens)]
        tokens, weights = tokens[order], weights[order]
        keep = len(tokens)
        if params.top_p < 1:
            before = weights.cumsum() - weights
            # What top-k left counts as all there is.
            keep = int((before < params.top_p * (total or weights.sum())).sum())
        if params.min_p:
            keep = min(keep, int((weights >= params.min_p * weights[0]).sum()))
        tokens, weights = tokens[: max(keep, 1)], weights[: max(keep, 1)]
    cumulative = weights.cumsum()
    target = uniform(spec.seed, spec.position) * cumulative[-1]
    return int(tokens[min(int(cumulative.searchsorted(target)), len(tokens) - 1)])


def _likeliest(
    row: Floats, highest: np.floating, params: SamplingParams
) -> tuple[npt.NDArray[np.int64], float]:
    """Tokens in order of their ids, with all among them that the filters can keep; and the sum of
    all tokens' weights where top-p asks for it, else 0.
    """
    if params.top_k:
        margin = _MARGIN
        while margin < _FAR:
            tokens = np.flatnonzero(row >= highest - margin)
            if len(tokens) >= params.top_k:
                return tokens, 0.0
            margin *= 2
    elif params.top_p < 1:
        weights = np.exp((row - highest) / np.float32(params.temperature))
        total = float(weights.sum(dtype=np.float64))
        tokens = np.flatnonzero(weights >= _RARE)
        if weights[tokens].sum(dtype=np.float64) > params.top_p * total:
            return tokens, total
        return np.arange(len(row)), total
    elif params.min_p:
        # A little more than is kept, because of float32.
        floor = highest + np.log(params.min_p) * params.temperature
        return np.flatnonzero(row >= floor - 1e-3 * max(1.0, abs(floor))), 0.0
    return np.arange(len(row)), 0.0
