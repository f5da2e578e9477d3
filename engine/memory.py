"""Who gets which blocks: reserving them for a request, keeping what it needs, giving all back."""

from collections.abc import Sequence

from engine.blocks import BlockPool
from engine.plan import BlockCopy
from engine.prefixes import Prefix, PrefixTree
from engine.request import Request


class Memory:
    """The block pool and the prefix tree, as requests see them.

    A request first *claims* its prefix nodes (they stay while it is interested), then *reserves*
    every block it can ever need, so that no reply stops for want of memory. Whoever has claimed its
    chain counts in `users` of each of its nodes.
    """

    def __init__(self, pool: BlockPool, tree: PrefixTree) -> None:
        self.pool = pool
        self.tree = tree

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
        there to be logits: if all are cached, the last one is computed again. A block that is
            shared
        and would be written to is copied first (copy-on-write).
        """
        size = self.pool.block_size
        known, covered = self._known(request)
        hit = min(covered, len(request.tokens) - 1)
        found = known[: self.pool.blocks_for(hit)]
        self.pool.share(found)
        fresh = self.tree.allocate(self.pool.blocks_for(request.own_limit) - hit // size)
        if fresh is None:
            self.pool.release(found)
            return None
        copies = []
        if hit % size:
            copies.append(BlockCopy(source=found[-1], target=fresh[0]))
            self.pool.release([found.pop()])
        request.blocks = found + fresh
        request.computed = hit
        return copies

    def _known(self, request: Request) -> tuple[list[int], int]:
        """Blocks that hold the beginning of a request's own part, and how many tokens of it."""
        sibling = request.sibling
        if sibling is not None and sibling.blocks and sibling.computed >= len(request.prompt_ids):
            covered = len(request.prompt_ids)
            return sibling.blocks[: self.pool.blocks_for(covered)], covered
        size = self.pool.block_size
        found: list[int] = []
        for index in range(len(request.tokens) // size):
            block = self.pool.find(request.key(index, size))
            if block is None:
                break
            found.append(block)
        return found, len(found) * size

    def give_back(self, request: Request) -> None:
        """Take a request's blocks away; what it computed may still be found until it is evicted."""
        self.pool.release(request.blocks)
        request.blocks = []
        request.computed = 0

    def publish(self, request: Request, before: int) -> None:
        """Make the blocks that were filled since `before` computed tokens findable."""
        size = self.pool.block_size
        for index in range(before // size, request.computed // size):
            self.pool.publish(request.blocks[index], request.key(index, size))
