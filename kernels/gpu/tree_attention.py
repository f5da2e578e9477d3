"""Tree attention: rows that share a scene or persona read its KV once, together.

Of the kernels in `kernels.gpu.tree_kernels`, `attend` takes items (a tile of rows, a stretch of KV,
one KV head; see `kernels.tree_work`) and leaves for each row a partial result and the logarithm of
its weight; `merge` adds up each row's partials. `read` takes tiles of a sequence that reads and
walks down its whole chain. How much there is to do is read from tables in device memory, so a
captured graph can be replayed when the tables have changed.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
import triton

from kernels.gpu.early import starts_early
from kernels.gpu.tree_kernels import attend, merge, read
from kernels.tree_work import TileRows

#: Up to so many rows, leaving and joining the side stream takes longer than it spares.
_ALONE = 64
#: Partials of a row that are merged at once, and heads of it that one program takes.
_MERGED, _MERGED_HEADS = 4, 8


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program works.

    Attributes:
        rows: query rows (batch rows × heads of a group) it holds.
        tokens: KV tokens it takes at a time.
        warps, stages: of the program, and of its loads in flight.
        programs: how many run on each multiprocessor.
        registers: most of a thread, so that as many programs fit; None leaves it to the compiler.
    """

    rows: int
    tokens: int
    warps: int
    stages: int
    programs: int
    registers: int | None = None


class Tiles(NamedTuple):
    """Tiles for few and for many rows of different sequences, and for sequences that read.

    A row's bits depend on the order of its sums, and that on `tokens` but on nothing else of a
    tile: with equal `tokens` all give the same.
    """

    small: Tile
    large: Tile
    reading: Tile


@dataclass(frozen=True, slots=True)
class WorkTables:
    """`kernels.tree_work.Work` in device memory, int32, and what changes with every step.

    Attributes:
        rows, blocks, links, parts, part_first, part_count: as there.
        merged: as there, filled up with -1.
        small, large, reading: items.
        counts: [3], number of items of each kind.
        positions: [batch rows].
    """

    rows: torch.Tensor
    blocks: torch.Tensor
    small: torch.Tensor
    large: torch.Tensor
    reading: torch.Tensor
    links: torch.Tensor
    merged: torch.Tensor
    counts: torch.Tensor
    parts: torch.Tensor
    part_first: torch.Tensor
    part_count: torch.Tensor
    positions: torch.Tensor


class TreeAttention:
    """Tree attention for one shape of heads.

    Attributes:
        tiles: how each kind of item is computed.

    Args:
        heads, kv_heads, head_dim: of the model.
        block_size: tokens of a KV block.
        dtype: of queries and KV.
        processors: multiprocessors of the device.
        window: tokens a row sees, itself included; 0 is all.
        soft_cap: scores are squashed into ±soft_cap; 0 leaves them.
        scale: of the scores; None is 1/√head_dim.
        tiles: None takes those that measured best.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
        processors: int,
        *,
        window: int = 0,
        soft_cap: float = 0.0,
        scale: float | None = None,
        tiles: Tiles | None = None,
    ) -> None:
        self._heads, self._kv_heads, self._dim = heads, kv_heads, head_dim
        self._block, self._processors = block_size, processors
        self._window, self._soft_cap = window, soft_cap
        self._scale = head_dim**-0.5 if scale is None else scale
        self._group = heads // kv_heads
        self._padded = max(16, triton.next_power_of_2(head_dim))
        wide = dtype == torch.float32
        self._precision = "ieee" if wide else "tf32"
        least = triton.next_power_of_2(self._group)
        chosen = tiles or _tiles(self._padded, wide)
        self.tiles = Tiles(*(_holding(tile, least) for tile in chosen))

    @property
    def rows(self) -> TileRows:
        """Batch rows that an item of each kind holds at most."""
        return TileRows(*(tile.rows // self._group for tile in self.tiles))

    def __call__(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        tables: WorkTables,
        partials: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        *,
        side: torch.cuda.Stream | None = None,
    ) -> None:
        """Attend.

        Args:
            q: [rows, heads, dim].
            keys, values: [kv_heads, slots, dim], one layer of the cache, in which the batch's own
                KV is stored already.
            tables: the work.
            partials, weights: float32 [partials, heads, dim] and [partials, heads], overwritten.
            out: [rows, heads, dim], overwritten.
            side: stream on which large items may run beside the small ones.
        """
        items = partial(self._items, q, keys, values, tables, partials, weights)
        if len(tables.reading):
            self._read(q, keys, values, tables, out)
        many = len(q) > 2 * self.rows.small  # with fewer rows there can be no large item
        side = side if len(q) > _ALONE else None
        if many and side is not None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                items(self.tiles.large, tables.large, 1)
        elif many:
            items(self.tiles.large, tables.large, 1)
        items(self.tiles.small, tables.small, 0)
        if many and side is not None:
            torch.cuda.current_stream().wait_stream(side)
        if not len(tables.merged):
            return
        early = starts_early(q.device)
        merge[(len(tables.merged), triton.cdiv(self._heads, _MERGED_HEADS))](
            partials,
            weights,
            tables.merged,
            tables.parts,
            tables.part_first,
            tables.part_count,
            out,
            self._heads,
            self._dim,
            self._padded,
            _MERGED_HEADS,
            _MERGED,
            early,
            num_warps=4,
            launch_pdl=early,
        )

    def _items(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        tables: WorkTables,
        partials: torch.Tensor,
        weights: torch.Tensor,
        tile: Tile,
        items: torch.Tensor,
        kind: int,
    ) -> None:
        if not len(items):
            return
        early = starts_early(q.device)
        attend[self._grid(tile, items)](
            q,
            keys,
            values,
            partials,
            weights,
            tables.positions,
            tables.rows,
            tables.blocks,
            items,
            tables.counts[kind:],
            *self._constants(tile, keys, split=kind > 0),
            early,
            num_warps=tile.warps,
            maxnreg=tile.registers,
            launch_pdl=early,
        )

    def _read(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        tables: WorkTables,
        out: torch.Tensor,
    ) -> None:
        tile, early = self.tiles.reading, starts_early(q.device)
        read[self._grid(tile, tables.reading)](
            q,
            keys,
            values,
            out,
            tables.positions,
            tables.blocks,
            tables.links,
            tables.reading,
            tables.counts[2:],
            *self._constants(tile, keys, split=True),
            early,
            num_warps=tile.warps,
            maxnreg=tile.registers,
            launch_pdl=early,
        )

    def _grid(self, tile: Tile, items: torch.Tensor) -> tuple[int]:
        return (min(self._processors * tile.programs, len(items) * self._kv_heads),)

    def _constants(
        self, tile: Tile, keys: torch.Tensor, *, split: bool
    ) -> tuple[float | int | str | bool, ...]:
        """What `attend` and `read` take from `scale` to `SPLIT`."""
        return (
            self._scale,
            keys.stride(0),
            self._kv_heads,
            self._group,
            self._dim,
            self._padded,
            self._block,
            tile.rows,
            tile.tokens,
            self._window,
            self._soft_cap,
            self._precision,
            tile.stages,
            split and not self._window,
        )


def _tiles(padded: int, wide: bool) -> Tiles:
    """Tiles chosen by measurement on an H200. All take equally many tokens."""
    if wide:
        tokens = 32 if padded > 128 else 64
        many = Tile(64, tokens, 4, 1, 2)
        return Tiles(Tile(16, tokens, 4, 1, 4), many, many)
    if padded <= 128:
        return Tiles(Tile(16, 64, 4, 2, 4), Tile(128, 64, 8, 3, 1), Tile(128, 64, 8, 3, 1))
    many = Tile(64, 32, 4, 2, 1)
    return Tiles(Tile(16, 32, 4, 3, 3), many, many)


def _holding(tile: Tile, rows: int) -> Tile:
    """`tile`, or a taller one that holds at least `rows`."""
    return tile if tile.rows >= rows else replace(tile, rows=rows, registers=None)
