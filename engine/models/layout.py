"""Lays a plan out as the tensors that the decoder in torch reads."""

from collections.abc import Sequence

import torch

from engine.plan import ForwardBatch, SequenceStep, Span, wanted_states


def lay_out(sequences: Sequence[SequenceStep], block_size: int) -> ForwardBatch:
    """The batch of one step."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    logit_rows: list[int] = []
    for share in sequences:
        start, end = len(tokens), len(tokens) + len(share.tokens)
        tokens.extend(share.tokens)
        positions.extend(range(share.start, share.start + len(share.tokens)))
        slots.extend(share.slots(block_size))
        shared = tuple((segment.node, segment.length) for segment in share.segments[:-1])
        runs = _runs(share, block_size)
        spans.append(Span(start, end, share.start + end - start, runs, shared))
        if share.sample:
            logit_rows.append(end - 1)
    return ForwardBatch(
        torch.tensor(tokens),
        torch.tensor(positions),
        torch.tensor(slots),
        tuple(spans),
        torch.tensor(logit_rows, dtype=torch.int64),
        wanted_states(sequences),
    )


def _runs(share: SequenceStep, size: int) -> tuple[tuple[int, int], ...]:
    """Physically consecutive slots that hold the sequence's context, in order of position."""
    runs: list[tuple[int, int]] = []
    for segment in share.segments:
        left = segment.length
        for block in segment.blocks:
            count = min(size, left)
            if runs and runs[-1][0] + runs[-1][1] == block * size:
                runs[-1] = (runs[-1][0], runs[-1][1] + count)
            else:
                runs.append((block * size, count))
            left -= count
    return tuple(runs)
