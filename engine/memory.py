"""Who gets which blocks: reserving them for a request, keeping what it needs, giving all back."""

from collections.abc import Sequence

from engine.blocks import BlockPool
from engine.errors import NoRoom
from engine.plan import BlockCopy
from engine.prefixes import Prefix, PrefixTree
from engine.request import Request
from engine.sliding import Sliding


def no_room(pool: BlockPool, required: int, available: int) -> NoRoom:
    """The refusal of a request that needs so many blocks where so many are to be had."""
    unit = pool.block_bytes or 1
    return NoRoom(required * unit, available * unit)


class Memory:
    """The block pool and the prefix tree, as requests see them.

    A request first *claims* its prefix nodes (they stay while it is interested), then *reserves*
    every block it can ever need, so that no reply stops for want of memory. Whoever has claimed its
    chain counts in `users` of each of its nodes.
    """

    def __init__(self, pool: BlockPool, tree: PrefixTree, sliding: Sliding | None = None) -> None:
        self.pool = pool
        self.tree = tree
        self._sliding = sliding

    def needs(self, request: Request) -> int:
        """Blocks that a request lacks: its own, and those of prefix nodes that are not there."""
        absent = [node for node in request.chain if not node.resident]
        blocks_for = self.pool.blocks_for
        return blocks_for(self.room(request)) + sum(blocks_for(node.length) for node in absent)

    def claim(self, request: Request) -> None:
        """Keep the request's prefix nodes from being evicted. Idempotent."""
        if not request.claimed:
            request.claimed = True
            for node in request.chain:
                node.users += 1

    def unclaim(self, request: Request, waiting: Sequence[Request]) -> None:
        """Take a claim back and free nodes that were read for this request alone. Idempotent."""
        if request.claimed:
            request.claimed = False
            for node in request.chain:
                node.users -= 1
            self.drop_unwanted(request.chain, waiting)

    def drop_unwanted(self, chain: Sequence[Prefix], waiting: Sequence[Request]) -> None:
        """Free nodes that nobody needs any more, leaves first: those that are half computed, and
        those whose callers have all released them, as no request can name them again.

        A waiting request that has not had its turn yet needs its nodes too, although it claimed
        none.
        """
        for node in reversed(chain):
            if node.resident and not (node.ready and node.handles):
                claimed = node.users or node.pins or node.resident_children
                if not claimed and not any(node in request.chain for request in waiting):
                    self.tree.evict(node)

    def reserve(self, request: Request) -> list[BlockCopy] | None:
        """Give a request all blocks it can need, reusing cached history; None if there is no room.

        Returns the copies to be made before its first step. At least one token must be computed for
        there to be logits: if all are cached, the last one is computed again. A block that would be
        written to, or moved, is not shared but copied first (copy-on-write).
        """
        room = self.room(request)
        known, covered = self._known(request)
        hit = min(covered, len(request.tokens) - 1, room)
        found = known[: self.pool.blocks_for(hit)]
        shared = min(hit // self.pool.block_size, self._lasting(request))
        self.pool.share(found)  # so that they are not evicted for the others
        fresh = self.tree.allocate(self.pool.blocks_for(room) - shared)
        if fresh is None:
            self.pool.release(found)
            return None
        copies = [BlockCopy(*pair) for pair in zip(found[shared:], fresh, strict=False)]
        self.pool.release(found[shared:])
        request.blocks = found[:shared] + fresh
        request.computed = hit
        return copies

    def room(self, request: Request) -> int:
        """Most own tokens of a request that are in the cache at a time."""
        limit = request.own_limit
        if self._sliding is None or request.pooling is not None:  # texts are read whole
            return limit
        return self._sliding.of_own(limit)

    def full(self, requests: Sequence[Request]) -> list[Request]:
        """Those that have to slide before their next token finds room."""
        sliding = self._sliding
        if sliding is None:
            return []
        return [r for r in requests if r.pooling is None and r.computed >= sliding.room]

    def slide(self, request: Request) -> tuple[tuple[int, ...], int]:
        """Make room for a request that has none left and needs some.

        The oldest stretch behind its first tokens is let go, and its blocks are the room for what
        comes next. Returns the blocks whose keys must move, and by how many positions.
        """
        sliding = self._sliding
        if sliding is None or not self.full((request,)):
            return (), 0
        size = self.pool.block_size
        first, count = sliding.sinks // size, sliding.stretch // size
        gone, moved = request.blocks[first : first + count], request.blocks[first + count :]
        request.blocks[first:] = moved + gone
        request.let_go(sliding.sinks, sliding.stretch)
        del request.keys[first:]
        return tuple(moved), sliding.stretch

    def _lasting(self, request: Request) -> int:
        """Own blocks that stay as they are once computed, which others may share.

        What may have to move belongs to its request alone.
        """
        if self._sliding is None or request.own_limit <= self._sliding.room:
            return len(request.tokens)
        return self._sliding.sinks // self.pool.block_size

    def _known(self, request: Request) -> tuple[list[int], int]:
        """Blocks that hold the beginning of a request's own part, and how many tokens of it."""
        sibling = request.sibling
        if (
            sibling is not None
            and not (sibling.slid or request.slid)
            and sibling.blocks
            and sibling.computed >= len(request.prompt_ids)
        ):
            covered = len(request.prompt_ids)
            return sibling.blocks[: self.pool.blocks_for(covered)], covered
        size = self.pool.block_size
        if request.pooling is not None:
            return [], 0
        found: list[int] = []
        for index in range(min(len(request.tokens), self.room(request)) // size):
            block = self.pool.find(request.key(index, size))
            if block is None:
                break
            found.append(block)
        return found, len(found) * size

    def give_back(self, request: Request) -> None:
        """Take a request's blocks away; what it computed may still be found until it is evicted."""
        if not request.slid:  # what never moved is true, and nothing will move it now
            self._publish(request, 0, request.computed // self.pool.block_size)
        self.pool.release(request.blocks)
        request.blocks = []
        request.computed = 0

    def publish(self, request: Request, before: int) -> None:
        """Make the blocks that were filled since `before` computed tokens findable, if they stay as
        they are.
        """
        size = self.pool.block_size
        self._publish(
            request, before // size, min(request.computed // size, self._lasting(request))
        )

    def _publish(self, request: Request, first: int, end: int) -> None:
        if request.pooling is not None:
            return  # a dialogue's history is worth more than a text that was read once
        for index in range(first, end):
            self.pool.publish(request.blocks[index], request.key(index, self.pool.block_size))
