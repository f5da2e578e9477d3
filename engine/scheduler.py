"""Continuous batching: who advances by how many tokens in the next step.

There are no phases, only tokens to catch up with: a request that reads its prompt and one that
speaks differ in how many rows they get. The scheduler takes decisions and keeps the books; it
touches no tensor.
"""

import math
from collections.abc import Callable, Sequence

from engine.blocks import BlockPool
from engine.budget import Budget
from engine.config import EngineConfig
from engine.cost import StepCost
from engine.draft import Draft
from engine.errors import NoRoom, OutOfMemory
from engine.memory import Memory, no_room
from engine.pace import Pace
from engine.plan import BlockCopy, SequenceStep, StepPlan, node_step, request_step
from engine.policy import make_policy
from engine.prefixes import Prefix, PrefixTree
from engine.request import PENDING, Request, State, Warming
from engine.sliding import Sliding
from engine.slots import Slots
from engine.swapping import Swapping

Reader = Request | Warming


class Scheduler:
    """Requests waiting and running, and the prefix nodes they need.

    Invariants: a running request owns every block it can ever need; the `computed` of a node or
    request only ever covers KV that a finished step wrote; a request is parked at most once.

    Attributes:
        waiting: requests without blocks.
        slots: requests that run.
        parked: requests that lent their slot to a more urgent one but kept their KV.
        warming: prefix nodes to be computed for their own sake.
        newest: highest id of a request that was queued.
        ageing_s: after which waiting makes up for a class; 0 where there are none.
        policy, budget, cost, pace: who goes first, how much a step reads, what it takes, and what
            suits the device.
        prefill_computed: prompt tokens fed to the model so far, prefixes included.
        prefill_ideal: those that nobody had computed before: what a perfect cache would leave.
        parks, preemptions: how often a reply lent its slot, and lost its KV as well.
        swaps: how often its KV went to host memory instead.
    """

    def __init__(self, config: EngineConfig, pool: BlockPool, tree: PrefixTree) -> None:
        self._config = config
        self._memory = Memory(pool, tree, Sliding.of(config))
        places = config.swap_space // pool.block_bytes if pool.block_bytes else 0
        self._swapping = Swapping(self._memory, places)
        self.policy = make_policy(config)
        self.pace = Pace.of(config)
        self.cost = StepCost(self.pace.row_tile)
        self.budget = Budget(self.pace, self.cost)
        self._quest_seen = -math.inf
        self.ageing_s = config.ageing_s if config.scheduling_policy == "priority" else 0.0
        self.waiting: list[Request] = []
        self.slots = Slots()
        self.parked: list[Request] = []
        self.warming: list[Warming] = []
        self.step = 0
        self.newest = -1
        self._paused = False  # whether anybody paused for a quest-giver in the step before
        self.prefill_computed = 0
        self.prefill_ideal = 0
        self.parks = 0
        self.preemptions = 0
        self.swaps = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.waiting or self.slots.running or self.parked or self.warming)

    @property
    def requests(self) -> list[Request]:
        """All that have not ended."""
        return [*self.waiting, *self.slots.running, *self.parked]

    @property
    def holders(self) -> list[Request]:
        """Requests that have blocks."""
        return [request for request in self.slots.running + self.parked if request.blocks]

    def add(self, request: Request) -> None:
        """Queue a request. Its feasibility was checked by the caller."""
        self.newest = max(self.newest, request.id)
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

    def released(self, node: Prefix) -> None:
        """No caller has a handle of this node any more."""
        self.unpin(node)
        self._memory.drop_unwanted(node.chain(), self.waiting)

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
        self._memory.drop_unwanted(node.chain(), self.waiting)

    # -- planning ----------------------------------------------------------------------------------

    def plan(
        self, now: float, absent: Callable[[Request], bool] = lambda request: False
    ) -> StepPlan | None:
        """Decide the next step at time `now` (seconds), or None if nothing can advance. Speakers
        that are `absent` stay out of it.

        Speakers get one row each. What the step target leaves is given to readers in the order of
        the policy: each reads its prefix nodes (unless somebody else is already doing so), then
        takes a slot and its blocks, then reads its own part. In a step in which a quest-giver reads
        its line, everybody else pauses where that is worth it, but never twice in a row: however
        many quest-givers come, the others get every other step.
        """
        self.step += 1
        slots = self.slots
        readers: list[Reader] = [*self.parked, *self.waiting, *self.warming, *slots.reading]
        readers.sort(key=lambda reader: self.policy.key(reader, now))
        self._park_for(readers)
        speakers = slots.present(absent)
        draft = Draft()
        urgent = self._quest_is_on(now, readers)
        budget = self.budget.reading(len(speakers), urgent=urgent)
        may_pause, self._paused = not self._paused, False
        others = sum(request.priority > 0 for request in speakers) if readers else 0
        memory_left = True
        for reader in readers:
            if budget > 0 and may_pause and self._yields(reader, others, draft, budget):
                self._paused, budget = True, 0
            if max(budget, self._urgent(reader, speakers, draft)) <= 0:
                continue
            if isinstance(reader, Warming) or reader.state is State.WAITING:
                if not memory_left:
                    continue  # in order: a small late request must not starve a large early one
                if self._only_lacks_a_slot(reader):
                    continue
                memory_left, budget = self._read_chain(reader, max(budget, 0), draft)
                if isinstance(reader, Warming) or not memory_left:
                    continue
                if max(budget, self._urgent(reader, speakers, draft)) <= 0:
                    continue
                if reader.waits_for_sibling or not self._joinable(reader):
                    continue
                if not self._slot_for(reader):
                    continue
                memory_left = self._admit(reader, now, draft.copies)
                if not memory_left:
                    continue
            elif reader.state is State.PARKED:
                if not self._slot_for(reader):
                    continue
                if not self._resume(reader, memory_left):
                    memory_left = False
                    continue
            most = max(budget, self._urgent(reader, speakers, draft))
            budget -= draft.add(self._advance(reader, most, now))
        if may_pause and draft.quest_tokens and self.budget.speakers_pause(others):
            self._paused = True
            speakers = tuple(request for request in speakers if request.priority == 0)
        self.budget.planned(len(speakers), draft.tokens, urgent=urgent)
        if full := self._memory.full(speakers):  # where keys are to move the step must say so
            for request in full:
                draft.add(self._advance(request, 1, now))
            speakers = tuple(request for request in speakers if request not in full)
        self.policy.spoke(speakers, now)
        if not (draft.shares or speakers):
            return None
        moves, size = self._swapping.moves(), self._config.block_size
        return StepPlan(self.step, tuple(draft.shares), tuple(draft.copies), *moves, speakers, size)

    def _yields(self, reader: Reader, others: int, draft: Draft, budget: int) -> bool:
        """Whether `reader` leaves the step, in which `others` speak, to a quest-giver who is about
        to begin.
        """
        if not draft.quest_tokens or reader.priority == 0:
            return False
        return self.budget.readers_yield(others, budget)

    def _quest_is_on(self, now: float, readers: list[Reader]) -> bool:
        """Whether a quest-giver is talked to, or was a moment ago: there will be a next line."""
        running = len(self.slots.running) > self.slots.ordinary
        if running or any(isinstance(r, Request) and r.priority == 0 for r in readers):
            self._quest_seen = now
        return now - self._quest_seen < self._config.ageing_s

    def _urgent(self, reader: Reader, speakers: Sequence[Request], draft: Draft) -> int:
        """Tokens of its own line that a quest-giver may read whatever the target says.

        A line is short; in pieces it would wait for several steps of everybody's speech.
        """
        if reader.priority > 0:
            return 0
        left = self.pace.max_num_batched_tokens - len(speakers) - draft.tokens
        return min(self._config.urgent_prefill_tokens - draft.quest_tokens, left)

    def _read_chain(self, reader: Reader, budget: int, draft: Draft) -> tuple[bool, int]:
        """Plan what a reader's prefix nodes lack; returns (memory sufficed, budget left)."""
        if isinstance(reader, Request):
            self._memory.claim(reader)
        for node in reader.chain:
            node.last_used = self.step
            if not node.resident:
                leader = reader.id if isinstance(reader, Request) else None
                if not self._memory.tree.place(node, leader):
                    return False, budget
                if not node.counted:
                    node.counted = True
                    self.prefill_ideal += node.length
            count = min(budget, node.length - node.scheduled)
            if count:
                budget -= draft.add(node_step(node, count, self._config.block_size))
            if not node.joinable:
                break
        return True, budget

    def _advance(self, request: Request, most: int, now: float) -> SequenceStep:
        """Feed up to `most` of the tokens a request has to catch up with."""
        moved, by = self._memory.slide(request)
        end = min(len(request.tokens), self._memory.room(request))
        count = min(most, end - request.computed)
        self.policy.served(request, count, now)
        return request_step(request, count, self._config.block_size, moved, by)

    def _admit(self, request: Request, now: float, copies: list[BlockCopy]) -> bool:
        """Give a waiting request a slot and all its blocks; False if there is no room.

        A quest-giver (class 0) takes the memory of replies that are parked for want of a slot.
        Their KV waits in host memory, or if there is no place, they compute it again.
        """
        reserved = self._memory.reserve(request)
        while reserved is None and request.priority == 0:
            holder = next((r for r in reversed(self.parked) if r.blocks), None)
            if holder is None:
                break
            if self._swapping.put_away(holder):
                self.swaps += 1
            else:
                self._preempt(holder)
            reserved = self._memory.reserve(request)
        if reserved is None:
            return False
        copies += reserved
        if request.scheduled_at is None:
            request.scheduled_at = now
            request.hit = request.computed
            self.prefill_ideal += len(request.tokens) - request.hit
        self.waiting.remove(request)
        self.slots.takes(request)
        return True

    # -- slots -------------------------------------------------------------------------------------

    @staticmethod
    def _joinable(request: Request) -> bool:
        return all(node.joinable for node in request.chain)

    def _only_lacks_a_slot(self, reader: Reader) -> bool:
        """Whether a reader has its nodes, and nothing to do but wait for a reply to end."""
        if isinstance(reader, Warming) or not reader.claimed:
            return False
        return not self._slot_for(reader) and self._joinable(reader)

    def _slot_for(self, request: Request) -> bool:
        """Whether a slot is free for a request of this class; a few are for class 0 only."""
        if len(self.slots.running) >= self.pace.max_num_seqs:
            return False
        for_ordinary = self.pace.max_num_seqs - self.pace.reserved_slots
        return request.priority == 0 or self.slots.ordinary < for_ordinary

    def _park_for(self, readers: list[Reader]) -> None:
        """Free slots for class-0 requests that could start now by parking ordinary replies.

        The youngest reply that was never parked before lends its slot: it has lost least, and no
        two requests can keep pushing each other out.
        """
        urgent = sum(
            isinstance(reader, Request)
            and reader.state is not State.RUNNING
            and reader.priority == 0
            and self._joinable(reader)
            for reader in readers
        )
        lacking = urgent - (self.pace.max_num_seqs - len(self.slots.running))
        for request in reversed(self.slots.running[:]):
            if lacking <= 0 or not self._config.parking:
                return
            may_lend = request.priority > 0 and not request.was_parked
            if may_lend and self.slots.speaks_now(request):
                request.was_parked = True
                request.state = State.PARKED
                self.slots.leaves(request)
                self.parked.append(request)
                self.parks += 1
                lacking -= 1

    def _resume(self, request: Request, memory_left: bool) -> bool:
        """Give a parked request a slot; False if its KV is away and there is no room for it."""
        swapping = self._swapping
        if swapping.is_away(request) and not (memory_left and swapping.bring_back(request)):
            return False
        self.parked.remove(request)
        self.slots.takes(request)
        return True

    def _preempt(self, request: Request) -> None:
        """Take a parked request's KV as well; it waits again and catches up by computing."""
        self.parked.remove(request)
        self._swapping.forget(request)
        self._memory.give_back(request)
        request.state = State.WAITING
        self.waiting.append(request)
        self.preemptions += 1

    # -- what a step has done ----------------------------------------------------------------------

    def computed(self, plan: StepPlan) -> None:
        """Book a step: its KV is in the cache for whoever comes after it, full blocks may be found,
        and those that draw a token have a `PENDING` one. Requests that have ended are left alone.
        """
        for share in plan.shares:
            count = len(share.tokens)
            if isinstance(share.owner, Prefix):
                self._node_computed(share.owner, count)
                continue
            request = share.owner
            if request.state is State.FINISHED:
                continue
            if not request.speaking:
                self.prefill_computed += count
            before = request.computed
            request.computed += count
            self._memory.publish(request, before)
            if share.sample:
                request.tokens.append(PENDING)
                self.slots.speaks(request)
            if request.complete:
                self.slots.is_silent(request)
        size = self._config.block_size
        for request in plan.replies:
            if request.state is State.FINISHED:
                continue
            request.computed += 1
            if not request.computed % size:
                self._memory.publish(request, request.computed - 1)
            request.tokens.append(PENDING)
            if request.complete:
                self.slots.is_silent(request)

    def _node_computed(self, node: Prefix, count: int) -> None:
        node.computed += count
        self.prefill_computed += count
        if not node.ready:
            return
        for warming in [w for w in self.warming if w.node is node]:
            self.warming.remove(warming)
            warming.done(None)

    def failed(self, plan: StepPlan) -> list[Request]:
        """Undo a step that did not run; returns the requests in it, to be ended by the caller."""
        nodes = [share.owner for share in plan.shares if isinstance(share.owner, Prefix)]
        self._memory.tree.forget_unfinished(nodes)
        for request in self._swapping.lost(plan):
            self._preempt(request)
        return plan.requests

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it is, and give its blocks and claims back."""
        match request.state:
            case State.WAITING:
                self.waiting.remove(request)
            case State.PARKED:
                self.parked.remove(request)
                self._swapping.forget(request)
                self._memory.give_back(request)
            case State.RUNNING:
                self.slots.leaves(request)
                self._memory.give_back(request)
        request.state = State.FINISHED
        self._memory.unclaim(request, self.waiting)

    def unstick(self, now: float, refuse: Callable[[Reader, OutOfMemory | NoRoom], None]) -> None:
        """Resolve a standstill: nothing runs, somebody waits, nothing fits.

        Waiting requests may hold prefix nodes that keep each other from being placed; all claims
        are dropped so that the next plan can place the first one alone. If that cannot help, the
        first is refused.
        """
        holders = [request for request in self.waiting if request.claimed]
        readers: list[Reader] = [*self.waiting, *self.warming]
        if self.parked:  # its KV is away and finds no room: it waits as everybody does
            self._preempt(self.parked[0])
            return
        first = min(readers, key=lambda reader: self.policy.key(reader, now))
        if len(holders) > 1 or (holders and holders[0] is not first):
            for request in holders:
                self._memory.unclaim(request, self.waiting)
            return
        pool = self._memory.pool
        if isinstance(first, Request):
            refuse(first, no_room(pool, self._memory.needs(first), pool.available))
            return
        refuse(
            first,
            OutOfMemory(
                f"the KV cache of {pool.size} blocks cannot hold this beside what is "
                "pinned; raise kv_cache_bytes or open fewer scenes"
            ),
        )
