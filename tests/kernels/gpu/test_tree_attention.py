"""Tree attention equals ordinary attention over each row's own context, whatever is shared."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from kernels.gpu.tree_attention import Tile, Tiles, TreeAttention, WorkTables
from kernels.reference_tree import tree_attention
from kernels.tree_work import CHUNK, LONG, Piece, TileRows, Work
from tests.kernels.gpu.trees import Case, Forest, build

BLOCK = 16


def attend(case: Case, attention: TreeAttention) -> torch.Tensor:
    """Run the kernels on poisoned memory."""
    work = case.work(attention.rows)
    heads, dim, device = case.q.shape[1], case.q.shape[2], case.q.device
    partials = torch.full((work.partials, heads, dim), float("nan"), device=device)
    weights = torch.full((work.partials, heads), float("nan"), device=device)
    out = torch.full_like(case.q, float("nan"))
    attention(case.q, case.keys, case.values, tables(work, case.positions), partials, weights, out)
    return out


def tables(work: Work, positions: torch.Tensor) -> WorkTables:
    def up(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(positions.device)

    return WorkTables(
        up(work.rows),
        up(work.blocks),
        up(work.small),
        up(work.large),
        up(work.reading),
        up(work.links),
        up(np.pad(work.merged, (0, 3), constant_values=-1)),
        up(np.array([len(work.small), len(work.large), len(work.reading)], np.int32)),
        up(work.parts),
        up(work.part_first),
        up(work.part_count),
        positions,
    )


def plain(case: Case) -> torch.Tensor:
    """Each row alone over its whole context, in float64: the definition of attention."""
    out = torch.empty_like(case.q)
    group = case.q.shape[1] // case.keys.shape[0]
    for share, rows in zip(case.shares, case.rows(), strict=True):
        slots = [
            int(piece.blocks[token // BLOCK]) * BLOCK + token % BLOCK
            for piece in share.pieces
            for token in range(piece.length)
        ]
        for row in rows:
            seen = torch.tensor(slots[: int(case.positions[row]) + 1])
            k = case.keys[:, seen].repeat_interleave(group, 0)
            v = case.values[:, seen].repeat_interleave(group, 0)
            scores = torch.einsum("hd,htd->ht", case.q[row], k) * case.q.shape[2] ** -0.5
            out[row] = torch.einsum("ht,htd->hd", scores.softmax(-1), v)
    return out


def theatre(
    heads: int = 2, kv_heads: int = 1, dim: int = 64, seed: int = 0, scene: int = 70
) -> Case:
    """Two scenes at different depths: speakers, readers, a node being computed, loners."""
    blocks = 200
    forest = Forest(blocks, BLOCK, seed)
    first, second = forest.piece(scene), forest.piece(1)
    shares: list[tuple[tuple[Piece, ...], int, int, bool]] = []
    for root, players in ((first, 4), (second, 1)):
        persona = forest.piece(forest.chance.choice((1, 17, 33)), (root,))
        chain = (root, persona)
        for _ in range(players):
            own = forest.piece(40, chain, shared=False)
            shares.append(((*chain, own), forest.chance.randrange(39), 1, True))
        own = forest.piece(40, chain, shared=False)
        shares.append(((*chain, own), forest.chance.choice((0, 5)), 21, False))
    fresh = forest.piece(30, (first,))
    shares.append(((first, fresh), 0, 30, False))
    joined = forest.piece(9, (first, fresh), shared=False)
    shares.append(((first, fresh, joined), 0, 9, False))
    loner = forest.piece(90, shared=False)
    shares.append(((loner,), 88, 1, True))
    reader = forest.piece(20, shared=False)
    shares.append(((reader,), 0, 20, False))
    forest.chance.shuffle(shares)
    return build(shares, blocks, BLOCK, heads, kv_heads, dim, seed)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    found = found.double().cpu()
    return float((found - wanted).norm() / wanted.norm())


def test_the_twin_is_ordinary_attention() -> None:
    case = theatre(scene=CHUNK + 40)
    twin = tree_attention(
        case.q, case.keys, case.values, case.work(TileRows(2, 8, 5)), case.positions, BLOCK
    )
    torch.testing.assert_close(twin, plain(case), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(4, 2, 64), (1, 1, 80), (6, 1, 96), (4, 1, 128), (2, 1, 256)]
)
def test_kernel_equals_the_twin(heads: int, kv_heads: int, dim: int, device: torch.device) -> None:
    case = theatre(heads, kv_heads, dim, seed=dim)
    attention = TreeAttention(heads, kv_heads, dim, BLOCK, torch.float32, 2)
    assert error(attend(case.to(device, torch.float32), attention), plain(case)) < 1e-5


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        # The interpreter has no bfloat16 products.
        pytest.param(torch.bfloat16, marks=pytest.mark.gpu),
    ],
)
def test_kernel_in_half_precision(dtype: torch.dtype, device: torch.device) -> None:
    case = theatre(4, 1, 64, seed=3)
    attention = TreeAttention(4, 1, 64, BLOCK, dtype, 2)
    low = case.to(device, dtype)
    exact = Case(low.q.double().cpu(), low.keys.double().cpu(), low.values.double().cpu(),
                 case.positions, case.shares)  # fmt: skip
    assert error(attend(low, attention), plain(exact)) < 1e-2


@pytest.mark.parametrize("scene", [CHUNK + 1, pytest.param(LONG + 9, marks=pytest.mark.gpu)])
def test_long_pieces_are_read_in_stretches(scene: int, device: torch.device) -> None:
    case = theatre(scene=scene)
    attention = TreeAttention(2, 1, 64, BLOCK, torch.float32, 2)
    assert error(attend(case.to(device, torch.float32), attention), plain(case)) < 1e-5


@pytest.mark.parametrize("options", [{"window": 40}, {"soft_cap": 3.0}, {"scale": 0.5}])
def test_window_soft_cap_and_scale(options: dict[str, float], device: torch.device) -> None:
    case = theatre(4, 1, seed=5)
    attention = TreeAttention(4, 1, 64, BLOCK, torch.float32, 2, **options)  # type: ignore[arg-type]
    work = case.work(attention.rows)
    wanted = tree_attention(
        case.q,
        case.keys,
        case.values,
        work,
        case.positions,
        BLOCK,
        **options,  # type: ignore[arg-type]
    )
    assert error(attend(case.to(device, torch.float32), attention), wanted) < 1e-5


def test_a_row_does_not_depend_on_its_batch_mates(device: torch.device) -> None:
    """Bitwise: any part of the batch gives each row what the whole batch gives it."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    case = theatre(4, 1, 64, seed=11).to(device, dtype)
    # The interpreter's products are not the same in tiles of different heights.
    tiles = Tiles(*[Tile(16, 64, 4, 1, 4)] * 3) if device.type == "cpu" else None
    attention = TreeAttention(4, 1, 64, BLOCK, dtype, 2, tiles=tiles)
    whole = attend(case, attention)
    chance = Forest(1, BLOCK, 11).chance
    for size in (1, 2, 5):
        chosen = chance.sample(range(len(case.shares)), size)
        part = case.pick(chosen)
        found = attend(part, attention)
        for rows, number in zip(part.rows(), chosen, strict=True):
            assert torch.equal(found[list(rows)], whole[list(case.rows()[number])])


def test_a_row_does_not_depend_on_how_much_is_read_at_once(device: torch.device) -> None:
    """Bitwise: a chain that is walked down gives what its pieces give when they are merged."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    case = theatre(4, 1, 64, seed=13).to(device, dtype)
    tiles = Tiles(*[Tile(16, 64, 4, 1, 4)] * 3)
    walking = TreeAttention(4, 1, 64, BLOCK, dtype, 2, tiles=tiles)
    tall = replace(tiles.reading, rows=256)  # taller than anything that is read here
    merging = TreeAttention(4, 1, 64, BLOCK, dtype, 2, tiles=tiles._replace(reading=tall))
    assert len(case.work(walking.rows).reading) and not len(case.work(merging.rows).reading)
    assert torch.equal(attend(case, walking), attend(case, merging))


def test_rows_without_work_become_zero(device: torch.device) -> None:
    """Padding of a captured batch has no partials; nothing may leak from old memory."""
    case = theatre(seed=2).to(device, torch.float32)
    attention = TreeAttention(2, 1, 64, BLOCK, torch.float32, 2)
    work = case.work(replace(attention.rows, reading=99))
    work.part_count[:] = 0
    out = torch.full_like(case.q, float("nan"))
    partials = torch.full((work.partials, 2, 64), float("nan"), device=device)
    weights = torch.full((work.partials, 2), float("nan"), device=device)
    attention(case.q, case.keys, case.values, tables(work, case.positions), partials, weights, out)
    assert not out.any()


def test_tables_may_hold_room_for_tokens_to_come(device: torch.device) -> None:
    """A piece planned at its full length gives the same as one planned at its present length."""
    forest = Forest(100, BLOCK, 0)
    scene = forest.piece(50)
    own = forest.piece(CHUNK + 80, (scene,), shared=False)
    case = build([((scene, own), 20, 1, True)], 100, BLOCK, 2, 1, 64)
    attention = TreeAttention(2, 1, 64, BLOCK, torch.float32, 2)
    short = Piece(-1, own.start, 21, own.blocks)
    now = build([((scene, short), 20, 1, True)], 100, BLOCK, 2, 1, 64)
    roomy = attend(case.to(device, torch.float32), attention)
    assert torch.equal(roomy, attend(now.to(device, torch.float32), attention))
    assert error(roomy, plain(case)) < 1e-5


@pytest.mark.gpu
def test_a_row_does_not_depend_on_the_tile_it_is_in(device: torch.device) -> None:
    """Bitwise: tiles of 16, 64 and 128 rows add in one order, so sharing changes no reply."""
    case = theatre(8, 2, 128, seed=7, scene=700).to(device, torch.bfloat16)
    results = []
    for rows, warps in ((16, 4), (64, 4), (128, 8)):
        tile = Tile(rows, 64, warps, 2, 1)
        attention = TreeAttention(8, 2, 128, BLOCK, torch.bfloat16, 132, tiles=Tiles(*[tile] * 3))
        results.append(attend(case, attention))
    for other in results[1:]:
        assert torch.equal(results[0], other)
