"""Attention of one decode step on a GPU: time of its parts, and of one tile against another.

    python -m benchmarks.attention             # the tiles the engine uses
    python -m benchmarks.attention --sweep     # looks for better ones

The shape is Llama-3.1-8B's (32 heads, 8 KV heads, 128); every layer has its own KV, so that no
cache outlives a layer. Times are medians of replays of a graph of all layers.
"""

import argparse
import itertools
from collections.abc import Callable

import numpy as np
import torch
from triton.testing import do_bench

from engine.kv.cache import KVCache
from kernels.gpu.tree_attention import Tile, TreeAttention, WorkTables
from kernels.tree_work import Piece, Share, Work, plan_work

HEADS, KV_HEADS, DIM, BLOCK, LAYERS = 32, 8, 128, 16, 32
#: scenes, personas of each, players of each; tokens of scene, persona, own part.
FORESTS = {
    "gpu": (8, 8, 4, 1024, 192, 128),
    "long": (2, 16, 8, 4096, 192, 128),
    "gpu, 64 running": (8, 4, 2, 1024, 192, 128),
    "256 scenes of one": (256, 1, 1, 1024, 192, 128),
}


def forest(
    scenes: int, personas: int, players: int, scene: int, persona: int, own: int
) -> tuple[list[Share], int]:
    """Everybody speaks; also returns how many blocks there are."""
    shares: list[Share] = []
    used = keys = 0

    def piece(start: int, length: int, *, shared: bool = True) -> Piece:
        nonlocal used, keys
        count, keys = -(-length // BLOCK), keys + 1
        blocks = np.arange(used, used + count, dtype=np.int32)
        used += count
        return Piece(keys if shared else -1, start, length, blocks)

    for _ in range(scenes):
        root = piece(0, scene)
        for _ in range(personas):
            middle = piece(scene, persona)
            for _ in range(players):
                last = piece(scene + persona, own, shared=False)
                shares.append(Share(len(shares), 1, (root, middle, last), True))
    return shares, used


class Bench:
    """One forest, its cache, and a graph of all layers."""

    def __init__(self, name: str) -> None:
        sizes = FORESTS[name]
        self.name = name
        self.shares, blocks = forest(*sizes)
        device = torch.device("cuda")
        self.cache = KVCache(LAYERS, KV_HEADS, DIM, blocks, BLOCK, torch.bfloat16, device)
        for layer in range(LAYERS):
            self.cache.keys[layer].normal_()
            self.cache.values[layer].normal_()
        self.kv_bytes = blocks * BLOCK * KV_HEADS * DIM * 4
        rows = len(self.shares)
        self.q = torch.randn(rows, HEADS, DIM, device=device, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.q)
        last = sum(sizes[3:]) - 1
        self.positions = torch.full((rows,), last, dtype=torch.int32, device=device)
        self.side = torch.cuda.Stream()

    def attention(self, small: Tile | None = None, large: Tile | None = None) -> TreeAttention:
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        return TreeAttention(
            HEADS, KV_HEADS, DIM, BLOCK, torch.bfloat16, processors, small=small, large=large
        )

    def measure(self, attention: TreeAttention, only: str = "", *, beside: bool = True) -> float:
        """Milliseconds of all layers; `only` "small", "large" or "merge" leaves the rest out."""
        work = plan_work(self.shares, attention.small_rows, attention.large_rows)
        tables = upload(work, self.positions)
        partials = torch.empty(work.partials, HEADS, DIM, device="cuda")
        weights = torch.empty(work.partials, HEADS, device="cuda")
        if only:
            empty = tables.small[:0]
            kept = {
                "small": (tables.small, empty),
                "large": (empty, tables.large),
                "merge": (empty, empty),
            }[only]
            tables = WorkTables(
                tables.rows, tables.blocks, *kept, tables.counts, tables.parts,
                tables.part_first, tables.part_count, tables.positions,
            )  # fmt: skip

        def layers() -> None:
            for keys, values in zip(self.cache.keys, self.cache.values, strict=True):
                attention(
                    self.q, keys, values, tables, partials, weights, self.out,
                    side=self.side if beside and not only else None,
                )  # fmt: skip

        return replayed(layers)


def upload(work: Work, positions: torch.Tensor) -> WorkTables:
    def up(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).cuda()

    counts = torch.tensor([len(work.small), len(work.large)], dtype=torch.int32, device="cuda")
    return WorkTables(
        up(work.rows), up(work.blocks), up(work.small), up(work.large), counts,
        up(work.parts), up(work.part_first), up(work.part_count), positions,
    )  # fmt: skip


def replayed(work: Callable[[], None]) -> float:
    """Median milliseconds of `work` as a graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return float(do_bench(graph.replay, warmup=5, rep=40, return_mode="median"))


def sweep(bench: Bench, kind: str) -> None:
    if kind == "small":
        options = itertools.product((16,), (32, 64, 128), (2, 4), (2, 3, 4), (4, 8))
    else:
        options = itertools.product((64, 128), (64, 128), (4, 8), (2, 3), (1, 2))
    found = []
    for option in options:
        tile = Tile(*option)
        try:
            attention = bench.attention(**{kind: tile})
            merging = bench.measure(attention, "merge")
            found.append((bench.measure(attention, kind) - merging, tile))
        except Exception as error:  # too much shared memory: not a candidate
            print(f"  {tile}: {str(error).splitlines()[0][:70]}", flush=True)
    for milliseconds, tile in sorted(found, key=lambda pair: pair[0])[:6]:
        print(f"  {bench.name}: {kind} {milliseconds:.3f} ms {tile}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    for name in FORESTS:
        bench = Bench(name)
        attention = bench.attention()
        whole, apart = bench.measure(attention), bench.measure(attention, beside=False)
        merge = bench.measure(attention, "merge")
        small, large = (bench.measure(attention, kind) - merge for kind in ("small", "large"))
        print(
            f"{name}: {bench.kv_bytes / 1e6:.0f} MB a layer; {LAYERS} layers {whole:.2f} ms "
            f"({bench.kv_bytes * LAYERS / whole / 1e9:.2f} TB/s), one after another {apart:.2f}; "
            f"small {small:.2f}, large {large:.2f}, merge {merge:.2f}",
            flush=True,
        )
        if arguments.sweep and name in ("gpu", "long"):
            sweep(bench, "small")
            sweep(bench, "large")
        del bench
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
