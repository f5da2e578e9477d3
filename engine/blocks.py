"""The block pool: who holds which block of the KV cache.

Every block is in exactly one state:

* *free*: nobody knows it;
* *held*: its reference count is above zero;
* *cached*: nobody holds it, but its content is still findable by its key and may be revived or
  evicted.

The pool knows numbers, not tensors. Blocks with equal keys hold equal KV; a block gets its key only
after its KV has been computed, so that a cancelled prefill can never leave half a block in the
cache.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence

Key = bytes


class BlockPool:
    """Reference-counted blocks with an LRU of cached ones.

    Attributes:
        size: number of blocks.
        block_size: tokens per block.
        block_bytes: memory behind one, for people; 0 if there is none.
    """

    def __init__(self, size: int, block_size: int, block_bytes: int = 0) -> None:
        self.size = size
        self.block_size = block_size
        self.block_bytes = block_bytes
        # A heap hands out the lowest number first: consecutive blocks make dense views for
        # attention.
        self._free = list(range(size))
        self._references = [0] * size
        self._key_of: dict[int, Key] = {}
        self._block_of: dict[Key, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first

    @property
    def free(self) -> int:
        """Blocks nobody knows."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks nobody holds but which can still be found by key."""
        return len(self._cached)

    @property
    def held(self) -> int:
        """Blocks with a reference."""
        return self.size - self.free - self.cached

    @property
    def available(self) -> int:
        """Blocks `allocate` can hand out: free ones and cached ones, which it evicts."""
        return self.free + self.cached

    def blocks_for(self, tokens: int) -> int:
        """Number of blocks that `tokens` tokens fill."""
        return -(-tokens // self.block_size)

    def references(self, block: int) -> int:
        """How many holders `block` has."""
        return self._references[block]

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks with one reference each, or None (and take none) if there are not
        enough.

        Free blocks go first, then the least recently used cached ones are evicted.
        """
        if count > self.available:
            return None
        while len(self._free) < count:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
            heapq.heappush(self._free, block)
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of `blocks`, reviving cached ones."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]  # KeyError here means: shared a block nobody could know
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each of `blocks`; a block without holders becomes cached if it has
        a key.

        The tail is dropped first, so that the roots of a chain are the youngest in the LRU and live
        longest.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} released twice"
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    heapq.heappush(self._free, block)

    def publish(self, block: int, key: Key) -> None:
        """Make a held, fully computed block findable. The first block of a key wins; later ones
        stay private.
        """
        assert self._references[block] > 0, f"block {block} published without a holder"
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def find(self, key: Key) -> int | None:
        """The block published under `key`, held or cached, or None."""
        return self._block_of.get(key)

    def check(self) -> None:
        """Raise AssertionError if the books do not add up. For tests and for idle moments."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        held = {b for b, count in enumerate(self._references) if count}
        cached = set(self._cached)
        assert not (free & held or free & cached or held & cached), "a block is in two states"
        assert len(free) + len(held) + len(cached) == self.size, "a block is lost"
        assert all(count >= 0 for count in self._references)
        assert {self._block_of[key] for key in self._block_of} == set(self._key_of)
        assert cached <= set(self._key_of), "a cached block cannot be found"
