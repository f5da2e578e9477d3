"""A request's life inside the engine."""

import enum
import hashlib
from array import array
from collections.abc import Callable

from engine.blocks import Key
from engine.decoding.constraint import Constraint
from engine.decoding.penalties import LogitChanges
from engine.decoding.text import TextStream
from engine.errors import OutOfMemory
from engine.outputs import Usage
from engine.params import SamplingParams
from engine.pooling import Pooling
from engine.prefixes import Prefix

#: Stands for a token that is being drawn.
PENDING = -1
#: Odd and far from small seeds, so that one request's noise never becomes another's.
_NEXT_SEED = 0x1E3779B97F4A7C15


class State(enum.Enum):
    """Where a request is."""

    WAITING = enum.auto()  # no slot and no blocks
    RUNNING = enum.auto()  # has a slot and all blocks it can ever need
    PARKED = enum.auto()  # lent its slot to a more urgent request, keeps its blocks
    FINISHED = enum.auto()


class Request:
    """A prompt, how to continue it, and how far that has come. Touched by the engine's thread only.

    The *own part* is everything after the prefix: the prompt's own tokens, then the output.

    Attributes:
        tokens: the own part so far, without what it had to let go; the last one may be `PENDING`.
        slid: tokens let go, see `engine.sliding`.
        own_limit: own tokens it may reach: prompt and longest output.
        computed: how many of `tokens` have their KV in the cache.
        blocks: physical blocks of the own part, enough for prompt and longest output once running.
        shares: on whose account it runs, for the `fair` policy; the narrowest first.
        hit: own prompt tokens that were found in the cache at admission.
        seed: key of this request's noise, see `engine.decoding.sampling`.
        changes: what its parameters change about logits, if anything.
        constraint: what holds it to its grammar, if it has one.
        pooling: gathers its hidden states, if it is a text to be read for its embedding; then it
            yields no token and shares no KV: all its states must be computed.
        sibling: another sample of the same prompt, whose KV it takes over instead of computing it.
        expected_s: seconds from its arrival to its first token, as was predicted then; None if
            nothing was.
        plain: whether its next token depends on those before it through the model alone.
    """

    def __init__(
        self,
        request_id: int,
        prompt_ids: tuple[int, ...],
        params: SamplingParams,
        *,
        prefix: Prefix | None,
        priority: int,
        salt: str,
        shares: tuple[str, ...],
        seed: int,
        text: TextStream,
        arrived: float,
        changes: LogitChanges | None = None,
        constraint: Constraint | None = None,
        sibling: "Request | None" = None,
        pooling: Pooling | None = None,
    ) -> None:
        self.id = request_id
        self.prompt_ids = prompt_ids
        self.params = params
        self.prefix = prefix
        self.priority = priority
        self.shares = shares
        self.seed = seed
        self.text = text
        self.arrived = arrived
        self.changes = changes
        self.constraint = constraint
        self.sibling = sibling
        self.pooling = pooling
        self.own_limit = len(prompt_ids) + (params.max_tokens if pooling is None else 0)
        self.plain = changes is None and constraint is None and params.logprobs is None
        self.chain = prefix.chain() if prefix else []
        self.base = prefix.total if prefix else 0

        self.state = State.WAITING
        self.claimed = False  # whether it counts as a user of its prefix nodes
        self.was_parked = False
        self.tokens = list(prompt_ids)
        self.slid = 0
        self.computed = 0
        self.blocks: list[int] = []
        self.hit = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.expected_s: float | None = None
        self._root = _digest(b"", f"{prefix.id if prefix else ''}|{salt}".encode())
        self.keys: list[Key] = []  # of full own blocks published or looked up so far

    @property
    def outputs(self) -> int:
        """Number of tokens generated so far, the one being drawn included."""
        return self.slid + len(self.tokens) - len(self.prompt_ids)

    @property
    def complete(self) -> bool:
        """Whether there is nothing to be fed any more: it has all its tokens, the last of which may
        be being drawn, or is a text that has been read.
        """
        if self.pooling is not None:
            return self.computed == len(self.tokens)
        return self.slid + len(self.tokens) >= self.own_limit

    @property
    def waits_for_sibling(self) -> bool:
        """Whether a sample of the same prompt is about to have computed it."""
        sibling = self.sibling
        if sibling is None or sibling.state is State.FINISHED or sibling.slid or self.slid:
            return False
        return sibling.computed < len(sibling.prompt_ids)

    @property
    def speaking(self) -> bool:
        """Whether its next row continues an output, rather than reading what is there already."""
        return self.outputs > 0 and self.computed == len(self.tokens) - 1

    def let_go(self, first: int, count: int) -> None:
        """Forget the `count` computed tokens from `first` on; those behind move up."""
        del self.tokens[first : first + count]
        self.computed -= count
        self.slid += count
        # Positions come again, and noise is drawn by (seed, position).
        self.seed = (self.seed + _NEXT_SEED) % 2**62

    def key(self, index: int, block_size: int) -> Key:
        """Key of own block `index`: names all tokens up to its end, the prefix and the salt.

        The chain starts from prefix and salt, so equal text under another salt has other keys and
        nobody can learn from timing what another player said.
        """
        while len(self.keys) <= index:
            start = len(self.keys) * block_size
            block = array("q", self.tokens[start : start + block_size]).tobytes()
            self.keys.append(_digest(self.keys[-1] if self.keys else self._root, block))
        return self.keys[index]

    def usage(self, now: float) -> Usage:
        """The bill, as of `now` (seconds, monotonic)."""
        inherited = sum(node.length for node in self.chain if node.leader != self.id)
        reached = self.scheduled_at is not None
        return Usage(
            prompt_tokens=self.base + len(self.prompt_ids),
            cached_tokens=inherited + self.hit if reached else 0,
            completion_tokens=self.outputs,
            arrived=self.arrived,
            scheduled=self.scheduled_at,
            first_token=self.first_token_at,
            finished=now,
        )


class Warming:
    """The wish to have a prefix node computed and kept, on behalf of nobody's prompt.

    Attributes:
        done: called once by the engine's thread, with None when the node is ready or with the
            reason it cannot be.
    """

    def __init__(
        self, node: Prefix, arrived: float, done: Callable[[OutOfMemory | None], None]
    ) -> None:
        self.node = node
        self.arrived = arrived
        self.done = done
        self.priority = 1
        self.shares: tuple[str, ...] = ()
        self.chain = node.chain()


def _digest(parent: Key, content: bytes) -> Key:
    return hashlib.blake2b(content, digest_size=16, key=parent).digest()
