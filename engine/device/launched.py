"""Steps under way on a device, and how their tokens are had."""

from collections.abc import Sequence

import torch

from engine.decoding.sampling import Sampled, SampleSpec, sample


class Pending:
    """A launched step."""

    def __init__(self, tokens: torch.Tensor, done: torch.cuda.Event | None) -> None:
        self._tokens = tokens
        self._done = done

    def result(self) -> list[Sampled]:
        """Wait for the step; one token for each sequence with `sample`, in order."""
        if self._done is not None:
            self._done.synchronize()
        return [Sampled(token) for token in self._tokens.tolist()]


class HostDrawn:
    """A launched step of which the host draws some tokens itself.

    Args:
        pending: what the device draws.
        numbers: which of its tokens are replaced.
        logits: of those rows, float32 [numbers, vocab] in host memory, there when `pending` is.
        specs: how they are drawn.
    """

    def __init__(
        self,
        pending: Pending,
        numbers: Sequence[int],
        logits: torch.Tensor,
        specs: Sequence[SampleSpec],
    ) -> None:
        self._pending = pending
        self._numbers = numbers
        self._logits = logits
        self._specs = specs

    def result(self) -> list[Sampled]:
        """As of `Pending`."""
        tokens = self._pending.result()
        drawn = sample(self._logits, self._specs)
        for number, sampled in zip(self._numbers, drawn, strict=True):
            tokens[number] = sampled
        return tokens
