"""The prefix tree: token sequences many requests start with, each computed and stored exactly once.

A node is known by what it says (parent, tokens), so two callers who name the same text get the same
node. Each node starts on a fresh block: it never shares a half-filled one, at the cost of at most
one block's rest.

A node's life is `absent` → `scheduled` (its last tokens are part of a step that is planned) →
`ready`. Requests may use a node from `scheduled` on, in the very step that computes it, because
every layer stores the whole step's KV before it attends. So any number of simultaneous arrivals
computes it once.
"""

import itertools
from collections.abc import Iterator, Sequence
from weakref import WeakValueDictionary

from engine.blocks import BlockPool


class Prefix:
    """One node: a handle for callers, and the engine's record of where its KV is.

    Callers read `id`, `parent`, `length`, `total` and `token_ids`; all other fields belong to the
    engine's thread.

    Attributes:
        id: unique in its engine.
        parent: the node whose text precedes this one's, or None.
        token_ids: tokens of this node alone.
        length: their number.
        total: tokens including all parents; the position at which a continuation starts.
    """

    def __init__(self, node_id: int, parent: "Prefix | None", token_ids: tuple[int, ...]) -> None:
        self.id = node_id
        self.parent = parent
        self.token_ids = token_ids
        self.length = len(token_ids)
        self.total: int = self.length + (parent.total if parent else 0)
        self.handles = 0  # how often callers created it and have not released it yet
        self.blocks: list[int] = []
        self.scheduled = 0  # tokens that are computed or part of a planned step
        self.computed = 0  # tokens whose KV is in the cache
        self.users = 0  # requests admitted or waiting that need it
        self.pinned = False  # whether callers want this very node kept although nobody uses it
        self.pins = 0  # pinned nodes among itself and its descendants
        self.leader: int | None = None  # the request that made it be computed
        self.last_used = 0  # step number, for LRU
        self.resident_children = 0  # children with blocks: they must go first
        self.counted = False  # whether it has been counted as work that had to be done

    def chain(self) -> list["Prefix"]:
        """This node and its parents, root first."""
        nodes = [self]
        while nodes[-1].parent is not None:
            nodes.append(nodes[-1].parent)
        return nodes[::-1]

    def all_token_ids(self) -> tuple[int, ...]:
        """Tokens from the root to the end of this node."""
        return tuple(token for node in self.chain() for token in node.token_ids)

    @property
    def resident(self) -> bool:
        """Whether it owns blocks (computed or being computed)."""
        return bool(self.blocks)

    @property
    def ready(self) -> bool:
        """Whether all its KV is in the cache."""
        return self.resident and self.computed == self.length

    @property
    def joinable(self) -> bool:
        """Whether it is ready, or will be by the end of the step being planned."""
        return self.resident and self.scheduled == self.length

    def __repr__(self) -> str:
        return f"<Prefix {self.id}: {self.length} tokens, {self.computed} computed>"


class PrefixTree:
    """All prefix nodes of an engine and their place in the block pool. Used by the engine's thread
    only.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._resident: dict[int, Prefix] = {}
        self._ids = itertools.count()
        # Alive as long as a caller, a request or the cache refers to the node.
        self._by_text: WeakValueDictionary[tuple[int, tuple[int, ...]], Prefix] = (
            WeakValueDictionary()
        )

    def node(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> Prefix:
        """The node that says `token_ids` after `parent`; made if need be. Computes nothing."""
        key = (parent.id if parent else -1, token_ids)
        node = self._by_text.get(key)
        if node is None:
            node = self._by_text[key] = Prefix(next(self._ids), parent, token_ids)
        return node

    @property
    def resident(self) -> Iterator[Prefix]:
        """Nodes that own blocks."""
        return iter(self._resident.values())

    def place(self, node: Prefix, leader: int | None) -> bool:
        """Give an absent node its blocks, evicting what nobody needs; False if there is no room.

        Its parent must be resident. `leader` is the request on whose behalf it will be computed.
        """
        assert not node.resident
        assert node.parent is None or node.parent.resident
        blocks = self.allocate(self._pool.blocks_for(node.length))
        if blocks is None:
            return False
        node.blocks = blocks
        node.scheduled = node.computed = 0
        node.leader = leader
        self._resident[node.id] = node
        if node.parent is not None:
            node.parent.resident_children += 1
        return True

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, evicting cached history first, then idle nodes, oldest first.

        Nodes go last because a scene costs far more to compute again than a dialogue's history.
        """
        while self._pool.available < count:
            victim = min(
                (node for node in self._resident.values() if self._idle(node)),
                key=lambda node: node.last_used,
                default=None,
            )
            if victim is None:
                return None
            self.evict(victim)
        return self._pool.allocate(count)

    def evict(self, node: Prefix) -> None:
        """Take a node's blocks away; it is absent afterwards and may be placed again."""
        assert node.resident
        assert node.resident_children == 0
        self._pool.release(node.blocks)
        node.blocks = []
        node.scheduled = node.computed = 0
        del self._resident[node.id]
        if node.parent is not None:
            node.parent.resident_children -= 1

    def forget_unfinished(self, nodes: Sequence[Prefix]) -> None:
        """Undo what was scheduled but not computed, because a step failed."""
        for node in nodes:
            node.scheduled = node.computed

    def reclaimable(self) -> int:
        """Blocks of nodes that nobody uses or pinned, so that `allocate` may take them."""
        return sum(len(n.blocks) for n in self._resident.values() if not (n.users or n.pins))

    def pinned(self) -> int:
        """Blocks of nodes that are kept whether or not anybody uses them."""
        return sum(len(n.blocks) for n in self._resident.values() if n.pins)

    @staticmethod
    def _idle(node: Prefix) -> bool:
        return node.users == 0 and node.pins == 0 and node.resident_children == 0
