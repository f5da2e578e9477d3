"""Runs a step: lays a plan out as tensors, calls the model, samples. It takes no decision."""

from typing import Protocol

import torch

from engine.decoding.sampling import Sampled, SampleSpec, sample
from engine.kv.cache import KVCache
from engine.plan import ForwardBatch, SequenceStep, Span, StepPlan
from engine.request import Request


class Model(Protocol):
    """A decoder that can continue token sequences over a paged cache."""

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Store the batch's KV, then return float32 logits [len(batch.logit_rows), vocab]."""


class Runner(Protocol):
    """Whatever turns a plan into the next tokens."""

    def run(self, plan: StepPlan) -> list[Sampled]:
        """Compute a step; one token for each sequence with `sample`, in order."""


class ModelRunner:
    """Runs plans on a model and its KV cache."""

    def __init__(self, model: Model, cache: KVCache, block_size: int) -> None:
        self._model = model
        self._cache = cache
        self._block_size = block_size

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `Runner.run`."""
        size = self._block_size
        for copy in plan.copies:
            self._cache.copy(copy.source * size, copy.target * size, size)
        logits = self._model.forward(self._batch(plan), self._cache)
        specs = [sample_spec(share) for share in plan.sequences if share.sample]
        return sample(logits, specs) if specs else []

    def _batch(self, plan: StepPlan) -> ForwardBatch:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        logit_rows: list[int] = []
        for share in plan.sequences:
            start, end = len(tokens), len(tokens) + len(share.tokens)
            tokens.extend(share.tokens)
            positions.extend(range(share.start, share.start + len(share.tokens)))
            slots.extend(share.slots)
            shared = tuple((segment.node, segment.length) for segment in share.segments[:-1])
            spans.append(Span(start, end, share.start + end - start, self._runs(share), shared))
            if share.sample:
                logit_rows.append(end - 1)
        return ForwardBatch(
            torch.tensor(tokens),
            torch.tensor(positions),
            torch.tensor(slots),
            tuple(spans),
            torch.tensor(logit_rows, dtype=torch.int64),
        )

    def _runs(self, share: SequenceStep) -> tuple[tuple[int, int], ...]:
        """Physically consecutive slots that hold the sequence's context, in order of position."""
        size = self._block_size
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


def sample_spec(share: SequenceStep) -> SampleSpec:
    """What is needed to sample the last row of a request's share."""
    request = share.owner
    assert isinstance(request, Request)
    position = request.base + len(request.tokens)
    return SampleSpec(request.params, request.seed, position, request.changes, request.constraint)
