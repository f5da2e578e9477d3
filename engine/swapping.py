"""The books of KV that waits in host memory; `engine.kv.swap` moves the bytes."""

from engine.memory import Memory
from engine.plan import StepPlan, Swap
from engine.request import Request, State


class Swapping:
    """Parked replies whose KV gave way to a quest-giver and waits in host memory.

    Within a step everything goes out before anything comes back, so a place in host memory that a
    step empties is free for those after it only.
    """

    def __init__(self, memory: Memory, places: int) -> None:
        """Room for so many blocks in host memory; 0 where there is no swapping."""
        self._memory = memory
        self._free = list(range(places))
        self._emptied: list[int] = []
        self._away: dict[Request, tuple[int, ...]] = {}
        self._outs: list[Swap] = []
        self._ins: list[Swap] = []

    @property
    def free(self) -> int:
        """Places nobody's KV is in."""
        return len(self._free) + len(self._emptied)

    def is_away(self, request: Request) -> bool:
        """Whether a request's KV is in host memory."""
        return request in self._away

    def put_away(self, request: Request) -> bool:
        """Take a parked request's blocks; False, and nothing happens, if there is no place."""
        count = self._memory.pool.blocks_for(request.computed)
        if count > len(self._free):
            return False
        places = tuple(self._free[:count])
        del self._free[:count]
        self._away[request] = places
        self._outs.append(Swap(request, tuple(request.blocks[:count]), places))
        computed = request.computed
        self._memory.give_back(request)
        request.computed = computed
        return True

    def bring_back(self, request: Request) -> bool:
        """Give a request its blocks again, with what was in them; False if there is no room."""
        room = self._memory.room(request)
        blocks = self._memory.tree.allocate(self._memory.pool.blocks_for(room))
        if blocks is None:
            return False
        request.blocks = blocks
        places = self._away.pop(request)
        self._ins.append(Swap(request, tuple(blocks[: len(places)]), places))
        self._emptied += places
        return True

    def forget(self, request: Request) -> None:
        """A request's KV in host memory, if there is any, is not needed any more."""
        if request in self._away:
            self._emptied += self._away.pop(request)
            request.computed = 0

    def moves(self) -> tuple[tuple[Swap, ...], tuple[Swap, ...]]:
        """What the step being planned has to move out, and back."""
        outs = tuple(swap for swap in self._outs if swap.owner.state is not State.FINISHED)
        ins = tuple(swap for swap in self._ins if swap.owner.state is not State.FINISHED)
        self._outs, self._ins = [], []
        self._free += self._emptied
        self._emptied = []
        return outs, ins

    def postpone(self, plan: StepPlan) -> None:
        """A plan is not carried out: what it moves, the next one has to."""
        self._outs = [*plan.swaps_out, *self._outs]
        self._ins = [*plan.swaps_in, *self._ins]

    def lost(self, plan: StepPlan) -> list[Request]:
        """Requests whose KV was to go out with a step that failed; nobody knows where it is."""
        return [swap.owner for swap in plan.swaps_out if swap.owner in self._away]
