"""What one step computes, as plain data. The scheduler writes it, the runner reads it.

A `StepPlan` is device-neutral: it names token ids, positions and physical blocks, no tensor.
`ForwardBatch` is the same thing laid out as tensors for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from engine.request import Request

if TYPE_CHECKING:
    from engine.prefixes import Prefix


#: Given the final hidden states (after the last norm) of consecutive rows, [rows, hidden] in the
#: model's own precision, which are overwritten after the call.
StatesSink = Callable[[torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Segment:
    """KV of consecutive positions: a prefix node or a request's own tokens.

    Attributes:
        node: id of the prefix node, or -1 for the request's own part. Equal ids mean equal blocks,
            which is what shared-prefix attention groups by.
        blocks: physical block numbers in order.
        length: tokens of this segment that are attended, including those written in this step.
    """

    node: int
    blocks: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One sequence's share of a step: feed `tokens` at positions `start`, `start`+1, …

    Attributes:
        owner: the request, or the prefix node, these tokens belong to.
        tokens: token ids fed.
        start: position of the first of them.
        segments: where all KV up to and including these tokens lies, in order of position.
        sample: whether the last row's logits yield a token.
        moved: blocks whose keys are first to be rotated back by `moved_by` positions, because what
            lay before them was let go.
        states: who wants the hidden states of all its rows, if anybody does.
    """

    owner: Request | Prefix
    tokens: tuple[int, ...]
    start: int
    segments: tuple[Segment, ...]
    sample: bool
    moved: tuple[int, ...] = ()
    moved_by: int = 0
    states: StatesSink | None = None

    def slots(self, block_size: int) -> list[int]:
        """Physical slot (block × block size + offset) each token's KV is written to: those at the
        end of the last segment.
        """
        own = self.segments[-1]
        written = range(own.length - len(self.tokens), own.length)
        return [own.blocks[i // block_size] * block_size + i % block_size for i in written]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy-on-write: block `source` is to be copied to `target` before the forward pass."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Swap:
    """KV of a parked reply on its way to host memory, or back.

    Attributes:
        owner: whose.
        blocks: on the device.
        kept: in host memory, one for each of `blocks`.
    """

    owner: Request
    blocks: tuple[int, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True)
class StepPlan:
    """Everything one step computes.

    Most of it are replies that go on, hundreds of them and the same ones step after step. So they
    are only named: what each is fed, and where it goes, follows from the reply itself.

    Attributes:
        step: counts up from 1.
        shares: what is fed for everybody else.
        copies: to be done first, before any keys move, and in this order (a later target may be an
            earlier source).
        swaps_out, swaps_in: to be done before the copies: all that goes out, then all that comes.
        replies: each is fed its newest token, in a row behind the shares, and draws the next. The
            same object as in the plan before if nobody came or went.
        block_size: tokens per block.
    """

    step: int
    shares: tuple[SequenceStep, ...]
    copies: tuple[BlockCopy, ...] = ()
    swaps_out: tuple[Swap, ...] = ()
    swaps_in: tuple[Swap, ...] = ()
    replies: tuple[Request, ...] = ()
    block_size: int = 1

    @cached_property
    def sequences(self) -> tuple[SequenceStep, ...]:
        """All that the forward pass is fed: the shares, then replies written out as they stand when
        this is first asked for, which is while the step is begun.
        """
        return (*self.shares, *(request_step(r, 1, self.block_size) for r in self.replies))

    @property
    def rows(self) -> int:
        """Number of token rows in the forward pass."""
        return sum(len(share.tokens) for share in self.shares) + len(self.replies)

    @property
    def samples(self) -> int:
        """Number of tokens it draws: those of shares with `sample`, then one for each reply."""
        return sum(share.sample for share in self.shares) + len(self.replies)

    @property
    def speakers(self) -> int:
        """Number of those who speak, a row each; shares as they stand now."""
        speaking = (isinstance(s.owner, Request) and s.owner.speaking for s in self.shares)
        return sum(speaking) + len(self.replies)

    @property
    def requests(self) -> list[Request]:
        """The requests in it."""
        owners = [share.owner for share in self.shares if isinstance(share.owner, Request)]
        return [*owners, *self.replies]


def request_step(
    request: Request, count: int, block_size: int, moved: tuple[int, ...] = (), moved_by: int = 0
) -> SequenceStep:
    """Feed the next `count` tokens of a running request's own part."""
    start = request.computed
    end = start + count
    segments = [Segment(node.id, tuple(node.blocks), node.length) for node in request.chain]
    segments.append(Segment(-1, tuple(request.blocks[: -(-end // block_size)]), end))
    return SequenceStep(
        owner=request,
        tokens=tuple(request.tokens[start:end]),
        start=request.base + start,
        segments=tuple(segments),
        sample=end == len(request.tokens) and request.pooling is None,
        states=request.pooling.add if request.pooling else None,
        moved=moved,
        moved_by=moved_by,
    )


def node_step(node: Prefix, count: int, block_size: int) -> SequenceStep:
    """Feed the next `count` tokens of a prefix node; they count as scheduled from here on."""
    start = node.scheduled
    end = node.scheduled = start + count
    parents = node.chain()[:-1]
    segments = [Segment(parent.id, tuple(parent.blocks), parent.length) for parent in parents]
    segments.append(Segment(node.id, tuple(node.blocks[: -(-end // block_size)]), end))
    return SequenceStep(
        owner=node,
        tokens=node.token_ids[start:end],
        start=node.total - node.length + start,
        segments=tuple(segments),
        sample=False,
    )


def wanted_states(sequences: Sequence[SequenceStep]) -> tuple[tuple[int, int, StatesSink], ...]:
    """Rows [start, end) of a step whose hidden states are wanted, and by whom."""
    wanted: list[tuple[int, int, StatesSink]] = []
    start = 0
    for share in sequences:
        end = start + len(share.tokens)
        if share.states is not None:
            wanted.append((start, end, share.states))
        start = end
    return tuple(wanted)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [start, end) of a flat batch belong to one sequence that attends to `runs`.

    `runs` are (first slot, length) pairs of physically consecutive slots whose concatenation is the
    context at positions 0, 1, …, end of the sequence; row r of the span sits at context index
    `context - (end - start) + (r - start)` and sees everything up to itself (causal).

    `shared` are (node, length) of the pieces that the context begins with; all rows see all of
    them, and equal nodes mean equal slots. What follows is the sequence's own.
    """

    start: int
    end: int
    context: int
    runs: tuple[tuple[int, int], ...]
    shared: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """A `StepPlan` as tensors.

    Attributes:
        tokens: int64 [rows].
        positions: int64 [rows].
        slots: int64 [rows], where each row's K and V are written.
        spans: one per sequence.
        logit_rows: int64 [samples], rows whose logits are wanted.
        states: see `wanted_states`.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    spans: tuple[Span, ...]
    logit_rows: torch.Tensor
    states: tuple[tuple[int, int, StatesSink], ...] = ()
