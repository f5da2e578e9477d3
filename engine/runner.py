"""Runs a step: copies blocks, calls the model, samples. It takes no decision."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from engine.decoding.sampling import Sampled, SampleSpec, sample
from engine.kv.cache import KVCache
from engine.plan import SequenceStep, StepPlan
from engine.profile import Book, Span, no_book, no_span
from engine.request import Request


@runtime_checkable
class HostDecoder(Protocol):
    """A decoder on the CPU that can continue sequences over a paged cache.

    Attributes:
        block_multiple: what the cache's block size must be a multiple of.
    """

    block_multiple: int

    def compute(self, sequences: Sequence[SequenceStep], cache: KVCache) -> torch.Tensor:
        """Store the sequences' KV in `cache`, hand out the hidden states of those whose `states`
        are wanted, then return logits, float32 [sequences with `sample`, vocab], which the next
        call may overwrite.
        """

    def parts(self) -> dict[str, float]:
        """Seconds that parts of the last `compute` took, as far as they are known."""


class Runner(Protocol):
    """Whatever turns a plan into the next tokens."""

    def run(self, plan: StepPlan) -> list[Sampled]:
        """Compute a step; one token for each sequence with `sample`, in order."""


class ModelRunner:
    """Runs plans on a model and its KV cache.

    Attributes:
        span, book: of whoever profiles it.
    """

    def __init__(self, model: HostDecoder, cache: KVCache) -> None:
        self._model = model
        self._cache = cache
        self.span: Span = no_span
        self.book: Book = no_book

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `Runner.run`."""
        size = self._cache.block_size
        for copy in plan.copies:
            self._cache.copy(copy.source * size, copy.target * size, size)
        with self.span("model"):
            logits = self._model.compute(plan.sequences, self._cache)
            if self.book is not no_book:
                for name, seconds in self._model.parts().items():
                    self.book(name, seconds)
        with self.span("sample"):
            specs = [sample_spec(share) for share in plan.sequences if share.sample]
            return sample(logits, specs) if specs else []


def sample_spec(share: SequenceStep) -> SampleSpec:
    """What is needed to sample the last row of a request's share."""
    request = share.owner
    assert isinstance(request, Request)
    position = request.base + len(request.tokens)
    return SampleSpec(request.params, request.seed, position, request.changes, request.constraint)
