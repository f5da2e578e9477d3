"""Drawing the next token of each row on the device.

Top-k and top-p keep the tokens above a threshold, and a threshold can be searched for without
sorting: each pass over the row measures seven candidates and leaves an eighth of the range. What
can be kept is a few tokens as a rule: they are written to a list first, which takes one pass, and
the search is made there. The draw inverts the kept probabilities at one uniform number that depends
on (seed, position) alone, so a row's token does not depend on its batch mates. Tokens as likely as
the last one kept are kept too.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from kernels.gpu.changes import Told, change, note
from kernels.gpu.early import let_start, starts_early, take_turn

#: Columns of the sampling table, int32: temperature, top-p, min-p and repetition penalty (bits of
#: a float32), top-k, seed (low and high half), and the number of its record if something changes
#: its logits, else -1.
PARAMETERS = 8
#: Tokens that a program takes at a time, and places of a list.
_TILE = 2048
_PIVOTS = 8
#: Tokens that a list is to hold at least; a higher top-k is searched for in the whole row.
_FEW = 512


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that drawing works in.

    Attributes:
        changed: float32 [samples, vocab], logits that were changed.
        scores, tokens: float32 and int32 [samples, list], the tokens that may be kept.
    """

    changed: torch.Tensor
    scores: torch.Tensor
    tokens: torch.Tensor

    @classmethod
    def new(cls, samples: int, vocab: int, device: torch.device) -> "Scratch":
        """For so many samples at most."""
        return cls(
            torch.empty(samples, vocab, dtype=torch.float32, device=device),
            torch.empty(samples, _TILE, dtype=torch.float32, device=device),
            torch.empty(samples, _TILE, dtype=torch.int32, device=device),
        )

    @staticmethod
    def bytes_for(samples: int, vocab: int) -> int:
        """Bytes it takes."""
        return 4 * samples * (vocab + 2 * _TILE)


@triton.jit
def _scores(row, copy, copied, token, size):
    """Logits of a tile of tokens, float32: of the row, or of a copy that has `size` of them."""
    real = token < size
    if copied:
        logit = tl.load(copy + token, mask=real, other=float("-inf"))
    else:
        logit = tl.load(row + token, mask=real, other=float("-inf")).to(tl.float32)
    return logit


@triton.jit
def _order(value):
    """An int64 that sorts like the float32 `value`."""
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _value(order):
    """The float32 whose order that is."""
    bits = order.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _threshold(
    row,
    copy,
    copied,
    size,
    best,
    sharpness,
    floor,
    unit,
    goal,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """The highest order at or above which `goal` tokens (or their mass) lie, not below `floor`."""
    low = floor
    high = _order(best) // unit * unit + unit
    number = tl.arange(0, PIVOTS)
    while high - low > unit:
        step = (high - low) // unit
        pivot = low + (step * number // PIVOTS) * unit
        reached = tl.zeros([TILE, PIVOTS], tl.float32)
        for start in range(0, size, TILE):
            token = start + tl.arange(0, TILE)
            score = _scores(row, copy, copied, token, size)
            if BY_MASS:
                share = tl.exp((score - best) * sharpness)
            else:
                share = tl.where(token < size, 1.0, 0.0)
            above = _order(score)[:, None] >= pivot[None, :]
            reached += tl.where(above, share[:, None], 0.0)
        enough = tl.sum(reached, 0) >= goal
        # The lowest pivot is `low`, which is enough by definition.
        kept = tl.max(tl.where(enough | (number == 0), pivot, low), 0)
        over = tl.min(tl.where((enough == 0) & (pivot > kept), pivot, high), 0)
        low, high = kept, over
    return low


@triton.jit
def _list(
    row,
    copy,
    copied,
    scores,
    tokens,
    pivot,
    best,
    sharpness,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the tokens whose order is not below `pivot` to a list, as far as it has room. Returns
    how many there are, their mass, and that of all tokens.
    """
    count = tl.full([], 0, tl.int32)
    mass = tl.full([], 0.0, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for start in range(0, VOCAB, TILE):
        token = start + tl.arange(0, TILE)
        score = _scores(row, copy, copied, token, VOCAB)
        weight = tl.exp((score - best) * sharpness)
        total += tl.sum(weight, 0)
        taken = (_order(score) >= pivot) & (token < VOCAB)
        found = tl.sum(taken.to(tl.int32), 0)
        if found > 0:
            place = count + tl.cumsum(taken.to(tl.int32), 0) - 1
            fits = taken & (place < TILE)
            tl.store(scores + place, score, mask=fits)
            tl.store(tokens + place, token, mask=fits)
            mass += tl.sum(tl.where(taken, weight, 0.0), 0)
            count += found
    tl.debug_barrier()
    return count, mass, total


@triton.jit
def _sample(
    logits,
    table,
    seen,
    allowed,
    records,
    changed_logits,
    listed_scores,
    listed_tokens,
    sample_rows,
    positions,
    drawn,
    seen_stride,
    allowed_stride,
    records_stride,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    PIVOTS: tl.constexpr,
    FEW: tl.constexpr,
    NARROW: tl.constexpr,
    EARLY: tl.constexpr,
):
    let_start(EARLY)
    take_turn(EARLY)
    sample = tl.program_id(0)
    here = tl.load(sample_rows + sample)
    if here < 0:
        return
    entry = table + sample * 8
    temperature = tl.load(entry).to(tl.float32, bitcast=True)
    top_p = tl.load(entry + 1).to(tl.float32, bitcast=True)
    min_p = tl.load(entry + 2).to(tl.float32, bitcast=True)
    penalty = tl.load(entry + 3).to(tl.float32, bitcast=True)
    top_k = tl.load(entry + 4)
    number = tl.load(entry + 7)
    changed = number >= 0
    seen = seen + tl.maximum(number, 0) * seen_stride
    allowed = allowed + tl.maximum(number, 0) * allowed_stride
    record = records + tl.maximum(number, 0) * records_stride
    row = logits + sample.to(tl.int64) * VOCAB
    copy = changed_logits + sample.to(tl.int64) * VOCAB
    scores = listed_scores + sample * TILE
    tokens = listed_tokens + sample * TILE
    position = tl.load(positions + here) + 1
    if changed:
        change(row, copy, record, seen, allowed, penalty, VOCAB, TILE)

    lane = tl.arange(0, TILE)
    peak = tl.full([TILE], float("-inf"), tl.float32)
    home = tl.zeros([TILE], tl.int32)
    for start in range(0, VOCAB, TILE):
        score = _scores(row, copy, changed, start + lane, VOCAB)
        home = tl.where(score > peak, start, home)
        peak = tl.maximum(peak, score)
    best = tl.max(peak, 0)
    token = tl.min(tl.where(peak == best, home + lane, VOCAB), 0).to(tl.int32)

    if temperature > 0:
        sharpness = 1 / temperature
        # A bfloat16 logit has only the upper half of a float32's bits, unless it was changed.
        unit = tl.where(changed, 1, 65536 if NARROW else 1).to(tl.int64)
        floor = tl.full([], -2147483648, tl.int64)
        copied = changed
        listed = tl.full([], False, tl.int1)
        size = tl.full([], VOCAB, tl.int32)
        mass = tl.full([], 0.0, tl.float32)
        limited = (top_k > 0) & (top_k < VOCAB)
        goal = tl.where(limited, top_k, FEW)
        if (goal <= FEW) & (limited | (top_p < 1) | (min_p > 0)):
            # As many tokens as lanes have a peak above the pivot are above it, and few others.
            tl.store(scores + lane, peak)
            tl.debug_barrier()
            pivot = _threshold(
                row, scores, True, TILE, best, sharpness, floor, unit, goal.to(tl.float32),
                False, TILE, PIVOTS,
            )  # fmt: skip
            tl.debug_barrier()
            count, inside, mass = _list(
                row, copy, copied, scores, tokens, pivot, best, sharpness, VOCAB, TILE
            )
            # What may be kept must be among them.
            weakest = tl.exp((_value(pivot) - best) * sharpness)
            whole = limited | tl.where(top_p < 1, inside >= top_p * mass, weakest < min_p)
            listed = (count <= TILE) & whole
            if listed:
                copy, copied, size = scores, tl.full([], True, tl.int1), count
        if limited:
            floor = _threshold(
                row, copy, copied, size, best, sharpness, floor, unit, top_k.to(tl.float32),
                False, TILE, PIVOTS,
            )  # fmt: skip
        if top_p < 1:
            if limited | (listed == 0):
                mass = tl.full([], 0.0, tl.float32)
                for start in range(0, size, TILE):
                    score = _scores(row, copy, copied, start + lane, size)
                    weight = tl.exp((score - best) * sharpness)
                    mass += tl.sum(tl.where(_order(score) >= floor, weight, 0.0), 0)
            floor = _threshold(
                row, copy, copied, size, best, sharpness, floor, unit, mass * top_p,
                True, TILE, PIVOTS,
            )  # fmt: skip
        kept = tl.full([], 0.0, tl.float32)
        for start in range(0, size, TILE):
            score = _scores(row, copy, copied, start + lane, size)
            weight = tl.exp((score - best) * sharpness)
            chosen = (_order(score) >= floor) & (weight >= min_p)
            kept += tl.sum(tl.where(chosen, weight, 0.0), 0)

        # SplitMix64 of (seed, position), as on the CPU.
        low = tl.load(entry + 5).to(tl.uint32, bitcast=True).to(tl.uint64)
        high = tl.load(entry + 6).to(tl.uint32, bitcast=True).to(tl.uint64)
        z = ((high << 32) | low) * 0x9E3779B97F4A7C15
        z += (position + 1).to(tl.uint64) * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        z = z ^ (z >> 31)
        target = ((z >> 41).to(tl.int32).to(tl.float32) + 0.5) / 8388608.0 * kept

        before = tl.full([], 0.0, tl.float32)
        found = tl.full([], -1, tl.int32)
        for start in range(0, size, TILE):
            if found < 0:
                place = start + lane
                score = _scores(row, copy, copied, place, size)
                weight = tl.exp((score - best) * sharpness)
                chosen = (_order(score) >= floor) & (weight >= min_p) & (weight > 0)
                weight = tl.where(chosen, weight, 0.0)
                inside = tl.sum(weight, 0)
                if before + inside > target:
                    reached = before + tl.cumsum(weight, 0)
                    # Rounding may leave no sum above the target; then the last one chosen.
                    above = tl.min(tl.where(chosen & (reached > target), place, VOCAB), 0)
                    last = tl.max(tl.where(chosen, place, 0), 0)
                    found = tl.minimum(above, last).to(tl.int32)
                before += inside
        # Likewise for a target that rounding put at the very end: the most likely token.
        if found >= 0:
            token = found
            if listed:
                token = tl.load(tokens + found)

    tl.store(drawn + sample, token)
    tl.store(positions + here, position)
    if changed:
        note(record, seen, penalty, token)


def sample(
    logits: torch.Tensor,
    table: torch.Tensor,
    told: Told,
    scratch: Scratch,
    sample_rows: torch.Tensor,
    positions: torch.Tensor,
    drawn: torch.Tensor,
) -> None:
    """Draw one token per row, and move each row on by one position.

    Args:
        logits: [samples, vocab].
        table: int32 [samples, PARAMETERS], see `parameters`.
        told: what changes logits; the drawn tokens are noted there.
        scratch: for as many samples or more.
        sample_rows: int32 [samples], which batch row each sample belongs to; -1 draws nothing.
        positions: int32 [batch rows], of the tokens fed; increased by one where a token was drawn.
        drawn: int32 [samples or more], overwritten.
    """
    samples, vocab = logits.shape
    early = starts_early(logits.device)
    _sample[(samples,)](
        logits,
        table,
        told.seen,
        told.allowed,
        told.records,
        scratch.changed,
        scratch.scores,
        scratch.tokens,
        sample_rows,
        positions,
        drawn,
        told.seen.stride(0),
        told.allowed.stride(0),
        told.records.stride(0),
        vocab,
        _TILE,
        _PIVOTS,
        _FEW,
        logits.dtype == torch.bfloat16,
        early,
        num_warps=8,
        launch_pdl=early,
    )


def parameters(
    *,
    temperature: float,
    top_p: float,
    min_p: float,
    top_k: int,
    seed: int,
    repetition_penalty: float = 1.0,
    record: int = -1,
) -> npt.NDArray[np.int32]:
    """One row of the sampling table. `seed` is below 2^64; `record` is -1 if nothing changes its
    logits."""
    row = np.zeros(PARAMETERS, np.int32)
    row[:4].view(np.float32)[:] = (temperature, top_p, min_p, repetition_penalty)
    row[4] = min(top_k, 2**31 - 1)
    row[5:7] = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32)
    row[7] = record
    return row
