"""Attention of one decode step on a GPU: time of its parts, and of one tile against another.

    python -m benchmarks.attention             # the tiles the engine uses
    python -m benchmarks.attention --sweep     # looks for better ones

The shape is Llama-3.1-8B's (32 heads, 8 KV heads, 128); every layer has its own KV, so that no
cache outlives a layer. Times are medians of replays of a graph of all layers.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from triton.testing import do_bench

from engine.kv.cache import KVCache
from kernels.gpu.tree_attention import Tile, Tiles, TreeAttention, WorkTables
from kernels.tree_work import Piece, Share, Work, plan_work

HEADS, KV_HEADS, DIM, BLOCK, LAYERS = 32, 8, 128, 16, 32
#: scenes, personas of each, players of each; tokens of scene, persona, own part.
FORESTS = {
    "gpu": (8, 8, 4, 1024, 192, 128),
    "long": (2, 16, 8, 4096, 192, 128),
    "gpu, 64 running": (8, 4, 2, 1024, 192, 128),
    "256 scenes of one": (256, 1, 1, 1024, 192, 128),
}
#: Of those that read, everybody reads this many tokens.
TURN = 96
READERS = {"gpu, reading": (4, 7, 3, 1024, 192, TURN), "long, reading": (1, 11, 8, 4096, 192, TURN)}


def forest(
    scenes: int, personas: int, players: int, scene: int, persona: int, own: int, rows: int
) -> tuple[list[Share], int]:
    """Everybody speaks, or reads `rows` tokens; also returns how many blocks there are."""
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
                shares.append(Share(rows, (root, middle, last), rows == 1))
    return shares, used


class Bench:
    """One forest, its cache, and a graph of all layers."""

    def __init__(self, name: str) -> None:
        self.name, self.speaking = name, name in FORESTS
        sizes = FORESTS.get(name) or READERS[name]
        each = 1 if self.speaking else TURN
        self.shares, blocks = forest(*sizes, each)
        device = torch.device("cuda")
        self.cache = KVCache(LAYERS, KV_HEADS, DIM, blocks, BLOCK, torch.bfloat16, device)
        for layer in range(LAYERS):
            self.cache.keys[layer].normal_()
            self.cache.values[layer].normal_()
        self.kv_bytes = blocks * BLOCK * KV_HEADS * DIM * 4
        rows = len(self.shares) * each
        self.q = torch.randn(rows, HEADS, DIM, device=device, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.q)
        last = torch.arange(each, dtype=torch.int32, device=device) + sum(sizes[3:]) - each
        self.positions = last.repeat(len(self.shares))
        self.side = torch.cuda.Stream()

    def attention(self, tiles: Tiles | None = None) -> TreeAttention:
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        return TreeAttention(HEADS, KV_HEADS, DIM, BLOCK, torch.bfloat16, processors, tiles=tiles)

    def measure(self, attention: TreeAttention, only: str = "", *, beside: bool = True) -> float:
        """Milliseconds of all layers; with `only`, a kind of item or "merge", of that alone."""
        work = plan_work(self.shares, attention.rows)
        tables = upload(work, self.positions)
        partials = torch.empty(work.partials, HEADS, DIM, device="cuda")
        weights = torch.empty(work.partials, HEADS, device="cuda")
        if only:
            left_out = {"small", "large", "reading"} - {only}
            tables = replace(tables, **{kind: getattr(tables, kind)[:0] for kind in left_out})

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

    kinds = (work.small, work.large, work.reading)
    return WorkTables(
        up(work.rows), up(work.blocks), *map(up, kinds), up(work.links), up(work.merged),
        up(np.array([*map(len, kinds)], np.int32)), up(work.parts), up(work.part_first),
        up(work.part_count), positions,
    )  # fmt: skip


def replayed(work: Callable[[], None]) -> float:
    """Median milliseconds of `work` as a graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return float(do_bench(graph.replay, warmup=5, rep=40, return_mode="median"))


#: Tiles worth a try on an H200. All of a set take equally many tokens.
SMALL = (
    Tile(16, 64, 4, 2, 4),
    Tile(16, 64, 4, 2, 3),
    Tile(16, 64, 4, 2, 3, 96),
    Tile(16, 64, 4, 2, 4, 96),
    Tile(16, 64, 4, 3, 2),
)
LARGE = (
    Tile(64, 64, 4, 2, 1),
    Tile(64, 64, 4, 3, 1),
    Tile(64, 64, 4, 2, 2),
    Tile(128, 64, 8, 3, 1),
    Tile(128, 64, 8, 2, 2, 128),
)
READING = (
    Tile(128, 64, 8, 3, 1),
    Tile(128, 64, 8, 2, 2, 128),
    Tile(128, 64, 8, 4, 1),
    Tile(64, 64, 4, 2, 4, 128),
)


def sweep(bench: Bench) -> None:
    """The batch with every combination of tiles that may be good for it."""
    usual = bench.attention().tiles
    speakers = itertools.product(SMALL, LARGE, [usual.reading])
    readers = itertools.product([usual.small], [usual.large], READING)
    for tiles in speakers if bench.speaking else readers:
        time = bench.measure(bench.attention(Tiles(*tiles)))
        print(f"  {bench.name}: {time:.3f} ms {tiles}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    for name in (*FORESTS, *READERS):
        bench = Bench(name)
        attention = bench.attention()
        whole, apart = bench.measure(attention), bench.measure(attention, beside=False)
        merge = bench.measure(attention, "merge")
        parts = {k: bench.measure(attention, k) - merge for k in ("small", "large", "reading")}
        print(
            f"{name}: {bench.kv_bytes / 1e6:.0f} MB a layer; {LAYERS} layers {whole:.2f} ms "
            f"({bench.kv_bytes * LAYERS / whole / 1e9:.2f} TB/s), one after another {apart:.2f}; "
            f"{', '.join(f'{k} {v:.2f}' for k, v in parts.items())}, merge {merge:.2f}",
            flush=True,
        )
        if arguments.sweep and name != "256 scenes of one":
            sweep(bench)
        del bench
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
