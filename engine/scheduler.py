"""Continuous batching: who advances by how many tokens in the next step.

There are no phases, only tokens to catch up with: a request that reads its prompt and one that
    speaks differ
in how many rows they get. The scheduler takes decisions and keeps the books; it touches no tensor.
"""

from collections.abc import Callable

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.errors import OutOfMemory
from engine.plan import BlockCopy, Segment, SequenceStep, StepPlan
from engine.policy import PriorityPolicy, StepCost
from engine.prefixes import Prefix, PrefixTree
from engine.request import Request, State, Warming

Reader = Request | Warming


class Scheduler:
    """Requests waiting and running, and the prefix nodes they need.

    Invariants: a running request owns every block it can ever need (so no reply stops for want of
        memory); a
    node's or request's `computed` only ever covers KV that a finished step wrote; whoever has
    `claimed` its chain counts in `users` of each of its nodes.

    Attributes:
        waiting: requests without a slot.
        running: requests with one, in order of admission.
        prefill_computed: prompt tokens fed to the model so far, prefixes included.
        prefill_ideal: those that nobody had computed before: what a perfect cache would have left
            to do.
    """

    def __init__(self, config: EngineConfig, pool: BlockPool, tree: PrefixTree) -> None:
        self._config = config
        self._pool = pool
        self._tree = tree
        self._policy = PriorityPolicy(config.ageing_s)
        self.cost = StepCost(config)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.warming: list[Warming] = []
        self.step = 0
        self.prefill_computed = 0
        self.prefill_ideal = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.waiting or self.running or self.warming)

    def add(self, request: Request) -> None:
        """Queue a request. Its feasibility was checked by the caller."""
        self.waiting.append(request)

    def warm(self, warming: Warming) -> None:
        """Pin a node, so that it stays once it is computed, and see that it is."""
        if not warming.node.pinned:
            warming.node.pinned = True
            for node in warming.chain:
                node.pins += 1
        if warming.node.ready:
            warming.done(None)
        else:
            self.warming.append(warming)

    def unpin(self, node: Prefix, reason: OutOfMemory | None = None) -> None:
        """Take a pin back; a computation for its sake is given up for `reason`."""
        if not node.pinned:
            return
        node.pinned = False
        for ancestor in node.chain():
            ancestor.pins -= 1
        for warming in [w for w in self.warming if w.node is node]:
            self.warming.remove(warming)
            warming.done(reason or OutOfMemory("the prefix was released before it was warm"))
        self._drop_unwanted(node.chain())

    # -- planning ----------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """Decide the next step at time `now` (seconds), or None if nothing can advance.

        Speakers come first, one row each. What the step target leaves is given to readers in the
        order of the policy: each reads its prefix nodes (unless somebody else is already doing so),
        then takes a slot and its blocks, then reads its own part.
        """
        self.step += 1
        steps: list[SequenceStep] = []
        copies: list[BlockCopy] = []
        speakers = [r for r in self.running if r.decoding]
        for request in speakers:
            steps.append(self._advance(request, 1))
        budget = self.cost.prefill_budget(len(speakers))
        readers: list[Reader] = [
            *self.waiting,
            *self.warming,
            *(r for r in self.running if not r.decoding),
        ]
        readers.sort(key=lambda reader: self._policy.key(reader, now))
        memory_left = True
        for reader in readers:
            if budget <= 0:
                break
            if isinstance(reader, Warming) or reader.state is State.WAITING:
                if not memory_left:
                    continue  # in order: a small late request must not starve a large early one
                memory_left, budget = self._read_chain(reader, budget, steps)
                if isinstance(reader, Warming) or not memory_left or budget <= 0:
                    continue
                if not all(node.joinable for node in reader.chain) or not self._slot_for(reader):
                    continue
                memory_left = self._admit(reader, now, copies)
                if not memory_left:
                    continue
            count = min(budget, len(reader.prompt_ids) - reader.computed)
            steps.append(self._advance(reader, count))
            budget -= count
        if not steps:
            return None
        return StepPlan(self.step, tuple(steps), tuple(copies))

    def _read_chain(
        self, reader: Reader, budget: int, steps: list[SequenceStep]
    ) -> tuple[bool, int]:
        """Plan what a reader's prefix nodes lack; returns (memory sufficed, budget left)."""
        if isinstance(reader, Request):
            self._claim(reader)
        for node in reader.chain:
            node.last_used = self.step
            if not node.resident:
                leader = reader.id if isinstance(reader, Request) else None
                if not self._tree.place(node, leader):
                    return False, budget
                if not node.counted:
                    node.counted = True
                    self.prefill_ideal += node.length
            count = min(budget, node.length - node.scheduled)
            if count:
                steps.append(self._advance_node(node, count))
                budget -= count
            if not node.joinable:
                break
        return True, budget

    def _slot_for(self, request: Request) -> bool:
        """Whether a slot is free for a request of this class; the last few are for class 0 only."""
        free = self._config.max_num_seqs - len(self.running)
        return free > (0 if request.priority == 0 else self._config.reserved_slots)

    def _admit(self, request: Request, now: float, copies: list[BlockCopy]) -> bool:
        """Reserve every block the request can need and look its history up; False if there is no
        room.

        At least one prompt token must be computed for there to be logits. If the whole prompt is
        cached, the last token is computed again; its block is shared, so it is copied first (copy-
        on-write).
        """
        size = self._pool.block_size
        found: list[int] = []
        for index in range(len(request.prompt_ids) // size):
            block = self._pool.find(request.key(index, size))
            if block is None:
                break
            found.append(block)
        hit = min(len(found) * size, len(request.prompt_ids) - 1)
        self._pool.share(found)
        fresh = self._tree.allocate(self._pool.blocks_for(request.own_limit) - hit // size)
        if fresh is None:
            self._pool.release(found)
            return False
        if hit < len(found) * size:
            copies.append(BlockCopy(source=found[-1], target=fresh[0]))
            self._pool.release([found.pop()])
        request.blocks = found + fresh
        request.hit = request.computed = hit
        request.state = State.RUNNING
        request.scheduled_at = now
        self.prefill_ideal += len(request.prompt_ids) - hit
        self.waiting.remove(request)
        self.running.append(request)
        return True

    def _advance(self, request: Request, count: int) -> SequenceStep:
        start = request.computed
        end = start + count
        slots = self._slots(request.blocks, start, end)
        segments = [Segment(node.id, tuple(node.blocks), node.length) for node in request.chain]
        own = tuple(request.blocks[: self._pool.blocks_for(end)])
        segments.append(Segment(-1, own, end))
        return SequenceStep(
            owner=request,
            tokens=tuple(request.tokens[start:end]),
            start=request.base + start,
            slots=slots,
            segments=tuple(segments),
            sample=end == len(request.tokens),
        )

    def _advance_node(self, node: Prefix, count: int) -> SequenceStep:
        start = node.scheduled
        end = node.scheduled = start + count
        parents = node.chain()[:-1]
        segments = [Segment(parent.id, tuple(parent.blocks), parent.length) for parent in parents]
        segments.append(Segment(node.id, tuple(node.blocks), end))
        return SequenceStep(
            owner=node,
            tokens=node.token_ids[start:end],
            start=node.total - node.length + start,
            slots=self._slots(node.blocks, start, end),
            segments=tuple(segments),
            sample=False,
        )

    def _slots(self, blocks: list[int], start: int, end: int) -> tuple[int, ...]:
        size = self._pool.block_size
        return tuple(blocks[i // size] * size + i % size for i in range(start, end))

    # -- what a step has done ----------------------------------------------------------------------

    def computed(self, plan: StepPlan) -> None:
        """Book a finished step: its KV is in the cache now, and full prompt blocks may be found."""
        for share in plan.sequences:
            count = len(share.tokens)
            if isinstance(share.owner, Prefix):
                self._node_computed(share.owner, count)
                continue
            request = share.owner
            if not request.decoding:
                self.prefill_computed += count
            before = request.computed
            request.computed += count
            size = self._pool.block_size
            for index in range(before // size, request.computed // size):
                self._pool.publish(request.blocks[index], request.key(index, size))

    def _node_computed(self, node: Prefix, count: int) -> None:
        node.computed += count
        self.prefill_computed += count
        if not node.ready:
            return
        for warming in [w for w in self.warming if w.node is node]:
            self.warming.remove(warming)
            warming.done(None)

    def failed(self, plan: StepPlan) -> list[Request]:
        """Undo a step that did not run; returns the requests that were part of it, to be ended."""
        nodes = [share.owner for share in plan.sequences if isinstance(share.owner, Prefix)]
        self._tree.forget_unfinished(nodes)
        return [share.owner for share in plan.sequences if isinstance(share.owner, Request)]

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it is, and give its blocks and claims back. Idempotent."""
        if request.state is State.FINISHED:
            return
        if request.state is State.RUNNING:
            self.running.remove(request)
            self._pool.release(request.blocks)
            request.blocks = []
        else:
            self.waiting.remove(request)
        request.state = State.FINISHED
        self._unclaim(request)

    def unstick(self, now: float, refuse: Callable[[Reader, OutOfMemory], None]) -> None:
        """Resolve a standstill: nothing runs, somebody waits, nothing fits.

        Waiting requests may hold prefix nodes that keep each other from being placed; all claims
        are dropped so that the next plan can place the first one alone. If that cannot help, the
        first is refused.
        """
        if self.running:
            return
        holders = [r for r in self.waiting if r.claimed]
        readers: list[Reader] = [*self.waiting, *self.warming]
        first = min(readers, key=lambda reader: self._policy.key(reader, now))
        if len(holders) > 1 or (holders and holders[0] is not first):
            for request in holders:
                self._unclaim(request)
            return
        refuse(
            first,
            OutOfMemory(
                f"the KV cache of {self._pool.size} blocks cannot hold this beside what is pinned; "
                "raise kv_cache_bytes or open fewer scenes"
            ),
        )

    def _claim(self, request: Request) -> None:
        if not request.claimed:
            request.claimed = True
            for node in request.chain:
                node.users += 1

    def _unclaim(self, request: Request) -> None:
        if request.claimed:
            request.claimed = False
            for node in request.chain:
                node.users -= 1
                node.last_used = self.step
            self._drop_unwanted(request.chain)

    def _drop_unwanted(self, chain: list[Prefix]) -> None:
        """Free half-computed nodes that nobody needs any more, leaves first.

        A waiting request that has not had its turn yet needs its nodes too, although it claimed
        none.
        """
        for node in reversed(chain):
            if node.resident and not node.ready:
                claimed = node.users or node.pins or node.resident_children
                if not claimed and not any(node in request.chain for request in self.waiting):
                    self._tree.evict(node)
