"""A small engine for decoder tests: scattered blocks, prompts cut into chunks, mixed batches."""

import random
from dataclasses import dataclass, field

import torch

from engine.kv.cache import KVCache
from engine.models.decoder import Decoder
from engine.plan import ForwardBatch, Span

BLOCK = 16


@dataclass
class Sequence:
    """One prompt with its blocks, and how far it is computed."""

    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    done: int = 0

    def slots(self, start: int, end: int) -> list[int]:
        return [self.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, end)]

    def runs(self, end: int) -> tuple[tuple[int, int], ...]:
        runs: list[tuple[int, int]] = []
        for slot in self.slots(0, end):
            if runs and sum(runs[-1]) == slot:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((slot, 1))
        return tuple(runs)


class PagedLoop:
    """Computes sequences in whatever pieces a test asks for."""

    def __init__(self, decoder: Decoder, blocks: int = 256, seed: int = 0) -> None:
        config = decoder.config
        self.decoder = decoder
        self.cache = KVCache(
            config.layers,
            config.kv_heads,
            config.head_dim,
            blocks,
            BLOCK,
            decoder.kv_dtype,
            torch.device("cpu"),
        )
        self._random = random.Random(seed)
        self._free = list(range(blocks))
        self._random.shuffle(self._free)

    def open(self, tokens: list[int], room: int = 0, *, contiguous: bool = False) -> Sequence:
        """A sequence with blocks for its tokens and `room` more, scattered unless `contiguous`."""
        count = -(-(len(tokens) + room) // BLOCK)
        if contiguous:
            self._free.sort(reverse=True)
        return Sequence(list(tokens), [self._free.pop() for _ in range(count)])

    def close(self, sequence: Sequence) -> None:
        self._free.extend(sequence.blocks)
        self._random.shuffle(self._free)

    def step(self, *shares: tuple[Sequence, int]) -> torch.Tensor:
        """Advance each sequence by a number of tokens; logits of every row."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans = []
        for sequence, count in shares:
            start, end = sequence.done, sequence.done + count
            spans.append(Span(len(tokens), len(tokens) + count, end, sequence.runs(end)))
            tokens += sequence.tokens[start:end]
            positions += range(start, end)
            slots += sequence.slots(start, end)
            sequence.done = end
        batch = ForwardBatch(
            torch.tensor(tokens),
            torch.tensor(positions),
            torch.tensor(slots),
            tuple(spans),
            torch.arange(len(tokens)),
        )
        return self.decoder.forward(batch, self.cache)

    def prefill(self, sequence: Sequence, chunk: int) -> torch.Tensor:
        """Compute what is left in chunks; logits of every row."""
        parts = []
        while left := len(sequence.tokens) - sequence.done:
            parts.append(self.step((sequence, min(chunk, left))))
        return torch.cat(parts)
