"""What changes a row of logits before a token is drawn from it: penalties, biases and bans, as
`engine.decoding.penalties` has them, and what a grammar allows, as `engine.decoding.constraint`
has it, on a device that runs ahead of the host.

Each request that asks for any has a record on the device: its parameters, and what it has said. The
kernel that draws a token notes it there, so that the next step finds it before the host has seen
it. The changed logits, float32 as on the CPU, lie in a row of scratch memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

#: Most different tokens a reply with penalties by count may have, most biases, and most bans.
DISTINCT, BIASES, BANS = tl.constexpr(512), tl.constexpr(512), tl.constexpr(512)
#: Most tokens of a ban before the one that it bans.
CONTEXT = tl.constexpr(14)
_ALWAYS = 2**31 - 1

# A record, int32: the header (tokens said, different ones, presence and frequency penalty as bits
# of a float32, biases, bans, whether a grammar holds it), what was said last (newest first; -1 is
# nothing), and arrays.
_LATEST = tl.constexpr(8)
_TOKENS = tl.constexpr(_LATEST + 16)
_COUNTS = tl.constexpr(_TOKENS + DISTINCT)
_BIASED = tl.constexpr(_COUNTS + DISTINCT)
_BIAS = tl.constexpr(_BIASED + BIASES)
_FIRST = tl.constexpr(_BIAS + BIASES)
#: Numbers of a ban: until how many tokens were said it holds, its last token, and those before it,
#: newest first; -1 is any.
_BAN = tl.constexpr(2 + CONTEXT)
#: Numbers of a record.
RECORD: int = (_FIRST + BANS * _BAN).value
_ROUND = tl.constexpr(32)  # bans looked at together


@dataclass(frozen=True, slots=True)
class Told:
    """What the device was told of the requests that have records, and has noted of them.

    Attributes:
        records: int32 [requests, RECORD].
        seen: int32 [requests, ⌈vocab / 32⌉], bit t of a row says that token t occurred; kept up to
            date for requests with a repetition penalty.
        allowed: int32, so, too: the tokens that a grammar allows next.
    """

    records: torch.Tensor
    seen: torch.Tensor
    allowed: torch.Tensor

    @classmethod
    def new(cls, requests: int, vocab: int, device: torch.device) -> "Told":
        """For so many requests at a time."""
        words = -(-vocab // 32)
        return cls(
            torch.zeros(requests, RECORD, dtype=torch.int32, device=device),
            torch.zeros(requests, words, dtype=torch.int32, device=device),
            torch.zeros(requests, words, dtype=torch.int32, device=device),
        )

    @staticmethod
    def bytes_for(requests: int, vocab: int) -> int:
        """Bytes it takes."""
        return 4 * requests * (RECORD + 2 * -(-vocab // 32))


def record(
    *,
    presence: float,
    frequency: float,
    biases: Mapping[int, float],
    bans: Sequence[tuple[int, ...]],
    late: Sequence[int],
    min_tokens: int,
    max_tokens: int,
    held: bool = False,
) -> npt.NDArray[np.int32] | None:
    """The record of a request that has said nothing yet; None if one cannot hold it.

    Args:
        presence, frequency: penalties by whether and how often a token was said.
        biases: added to logits, by token.
        bans: sequences that are not completed.
        late: tokens that are not said before `min_tokens` others.
        max_tokens: most tokens the request will say.
        held: whether a grammar says which tokens may come.

    Returns:
        int32 [n], the beginning of a record; what follows is not read.
    """
    entries = [(_ALWAYS, word[-1], *reversed(word[:-1])) for word in bans]
    entries += [(min_tokens, token) for token in late if min_tokens]
    counted = bool(presence or frequency)
    longest = max(map(len, entries), default=0)
    if len(entries) > BANS.value or longest > _BAN.value or len(biases) > BIASES.value:
        return None
    if counted and max_tokens > DISTINCT.value:
        return None
    first, size = _FIRST.value, _BAN.value
    row = np.full(first + len(entries) * size, -1, np.int32)
    row[:2] = 0
    row[2:4].view(np.float32)[:] = (presence, frequency)
    row[4:7] = (len(biases), len(entries), held)
    row[_BIASED.value :][: len(biases)] = list(biases)
    row[_BIAS.value :][: len(biases)].view(np.float32)[:] = list(biases.values())
    for entry, ban in zip(entries, row[first:].reshape(-1, size), strict=True):
        ban[: len(entry)] = entry
    return row


@triton.jit
def change(row, scratch, record, seen, allowed, penalty, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Write the changed logits of `row` [VOCAB] to `scratch` [VOCAB], float32."""
    for start in range(0, VOCAB, TILE):
        token = start + tl.arange(0, TILE)
        real = token < VOCAB
        logit = tl.load(row + token, mask=real, other=0.0).to(tl.float32)
        if penalty != 1:
            word = tl.load(seen + token // 32, mask=real, other=0)
            hit = ((word >> (token % 32)) & 1) != 0
            logit = tl.where(hit, tl.where(logit > 0, logit / penalty, logit * penalty), logit)
        tl.store(scratch + token, logit, mask=real)
    tl.debug_barrier()

    said = tl.load(record)
    presence = tl.load(record + 2).to(tl.float32, bitcast=True)
    frequency = tl.load(record + 3).to(tl.float32, bitcast=True)
    if (presence != 0) | (frequency != 0):
        number = tl.arange(0, DISTINCT)
        there = number < tl.load(record + 1)
        token = tl.load(record + _TOKENS + number, mask=there, other=0)
        count = tl.load(record + _COUNTS + number, mask=there, other=0).to(tl.float32)
        logit = tl.load(scratch + token, mask=there, other=0.0)
        tl.store(scratch + token, logit - (presence + frequency * count), mask=there)
        tl.debug_barrier()
    biases = tl.load(record + 4)
    if biases > 0:
        number = tl.arange(0, BIASES)
        there = number < biases
        token = tl.load(record + _BIASED + number, mask=there, other=0)
        bias = tl.load(record + _BIAS + number, mask=there, other=0).to(tl.float32, bitcast=True)
        logit = tl.load(scratch + token, mask=there, other=0.0)
        tl.store(scratch + token, logit + bias, mask=there)
        tl.debug_barrier()
    bans = tl.load(record + 5)
    for first in range(0, bans, _ROUND):
        number = first + tl.arange(0, _ROUND)
        there = number < bans
        ban = record + _FIRST + number * _BAN
        holds = there & (tl.load(ban, mask=there, other=0) > said)
        for back in range(CONTEXT):
            wanted = tl.load(ban + 2 + back, mask=there, other=0)
            holds = holds & ((wanted < 0) | (wanted == tl.load(record + _LATEST + back)))
        token = tl.load(ban + 1, mask=there, other=0)
        tl.store(scratch + token, tl.full([_ROUND], float("-inf"), tl.float32), mask=holds)
    tl.debug_barrier()
    if tl.load(record + 6) != 0:
        _hold(row, scratch, allowed, VOCAB, TILE)


@triton.jit
def _hold(row, scratch, allowed, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Leave only what a grammar allows. It has the last word: where the rest has taken all of that,
    the logits of `row` count, and where those are all -inf, all are equally likely.
    """
    highest = tl.full([TILE], float("-inf"), tl.float32)
    plain = tl.full([TILE], float("-inf"), tl.float32)
    for start in range(0, VOCAB, TILE):
        token = start + tl.arange(0, TILE)
        real = token < VOCAB
        word = tl.load(allowed + token // 32, mask=real, other=0)
        may_come = real & (((word >> (token % 32)) & 1) != 0)
        logit = tl.load(scratch + token, mask=may_come, other=float("-inf"))
        highest = tl.maximum(highest, logit)
        untouched = tl.load(row + token, mask=may_come, other=float("-inf")).to(tl.float32)
        plain = tl.maximum(plain, untouched)
        tl.store(scratch + token, logit, mask=real)
    if tl.max(highest, 0) == float("-inf"):
        least = tl.where(tl.max(plain, 0) == float("-inf"), 0.0, float("-inf"))
        for start in range(0, VOCAB, TILE):
            token = start + tl.arange(0, TILE)
            real = token < VOCAB
            word = tl.load(allowed + token // 32, mask=real, other=0)
            may_come = real & (((word >> (token % 32)) & 1) != 0)
            logit = tl.load(row + token, mask=may_come, other=float("-inf")).to(tl.float32)
            logit = tl.where(may_come, tl.maximum(logit, least), float("-inf"))
            tl.store(scratch + token, logit, mask=real)
    tl.debug_barrier()


@triton.jit
def note(record, seen, penalty, token):
    """Note that `token` was said."""
    if penalty != 1:
        word = seen + token // 32
        tl.store(word, tl.load(word) | (1 << (token % 32)))
    back = tl.arange(0, 16)
    before = tl.load(record + _LATEST + back - 1, mask=back > 0, other=0)
    different = tl.load(record + 1)
    number = tl.arange(0, DISTINCT)
    there = number < different
    known = there & (tl.load(record + _TOKENS + number, mask=there, other=-1) == token)
    place = tl.min(tl.where(known, number, different), 0)
    # Only replies whose tokens are counted are sure to have room for all of them.
    place = tl.minimum(place, DISTINCT - 1)
    count = tl.where(place < different, tl.load(record + _COUNTS + place), 0)
    said = tl.load(record)
    tl.debug_barrier()
    tl.store(record + _LATEST + back, tl.where(back == 0, token, before))
    tl.store(record + _TOKENS + place, token)
    tl.store(record + _COUNTS + place, count + 1)
    tl.store(record + 1, tl.maximum(different, place + 1))
    tl.store(record, said + 1)
