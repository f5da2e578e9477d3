"""Host memory for the KV of replies that had to give up their place on a device."""

import torch

from engine.decoding.sampling import Sampled
from engine.kv.cache import KVCache
from engine.overlap import Launched, Launcher
from engine.plan import StepPlan
from engine.request import Request


class HostStore:
    """Blocks of a KV cache, kept in host memory.

    Moves are rare and happen between steps. They are done in the order of the device's stream, so
    what a step before has written is what is kept.
    """

    def __init__(self, cache: KVCache, blocks: int) -> None:
        """Room for so many blocks of `cache`."""
        self._cache = cache
        rows, _, numbers = cache.blocks.shape
        # [2 · layers · kv_heads, blocks, block_size · head_dim]
        self._kept = torch.empty((rows, blocks, numbers), dtype=cache.blocks.dtype)

    def move(self, plan: StepPlan) -> None:
        """Do what a plan says about swapping: first all that goes out, then all that comes back."""
        device = self._cache.blocks.device
        for out in plan.swaps_out:
            taken = self._cache.blocks.index_select(1, torch.tensor(out.blocks, device=device))
            self._kept.index_copy_(1, torch.tensor(out.kept), taken.cpu())
        for back in plan.swaps_in:
            kept = self._kept.index_select(1, torch.tensor(back.kept)).to(device)
            self._cache.blocks.index_copy_(1, torch.tensor(back.blocks, device=device), kept)


class SwappingRunner:
    """A runner that moves blocks between a device and a `HostStore` before each step."""

    def __init__(self, runner: Launcher, store: HostStore) -> None:
        self._runner = runner
        self._store = store

    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `engine.runner.Runner.run`."""
        self._store.move(plan)
        return self._runner.run(plan)

    def launch(self, plan: StepPlan) -> Launched:
        """See `engine.overlap.Launcher.launch`."""
        self._store.move(plan)
        return self._runner.launch(plan)

    def needs_host(self, request: Request) -> bool:
        """See `engine.overlap.Launcher.needs_host`."""
        return self._runner.needs_host(request)
