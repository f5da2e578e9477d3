"""The work list covers each row's context exactly once, in order, and shares what is shared."""

import random
from dataclasses import fields
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.tree_work import CHUNK, LONG, LONG_CHUNK, Piece, Share, TileRows, Work, plan_work
from tests.kernels.plain_work import plan_work_plainly

MOST = TileRows(small=2, large=8, reading=5)


def piece(key: int, start: int, length: int, first_block: int) -> Piece:
    count = -(-length // 16)
    return Piece(key, start, length, np.arange(first_block, first_block + count, dtype=np.int32))


def batch(seed: int) -> list[Share]:
    """Two scenes with two personas each, everybody in random order, some reading."""
    chance = random.Random(seed)
    shares: list[tuple[tuple[Piece, ...], int, bool]] = []
    block = 0
    for scene in range(2):
        root = piece(10 * scene, 0, chance.choice((1, 40, CHUNK + 1, LONG + 1)), block)
        block += 1000
        for persona in range(2):
            middle = piece(10 * scene + persona + 1, root.length, 33, block)
            block += 1000
            for _ in range(chance.randint(1, 12)):
                own = piece(-1, root.length + 33, chance.choice((7, 600)), block)
                block += 1000
                reading = chance.random() < 0.3
                count = chance.randint(1, min(9, own.length)) if reading else 1
                shares.append(((root, middle, own), count, not reading))
    chance.shuffle(shares)
    return [Share(count, pieces, speaking) for pieces, count, speaking in shares]


def first_rows(shares: list[Share]) -> list[int]:
    """Where the rows of each share begin."""
    return list(accumulate((share.count for share in shares[:-1]), initial=0))


def stretches_by_row(work: Work) -> dict[int, list[tuple[int, int, int]]]:
    """For each row, in order of its sums: (block, from, to) counted from its beginning."""
    found: dict[int, tuple[int, int, int, int]] = {}
    for kind, most in ((work.small, MOST.small), (work.large, MOST.large)):
        for first, size, blocks, start, begin, end, part in kind.tolist():
            assert 0 < size <= most
            for member in range(size):
                entry = (int(work.rows[first + member]), int(work.blocks[blocks]), start + begin)
                assert part + member not in found, "two items leave one partial"
                found[part + member] = (*entry, start + end)
    assert len(found) == work.partials == len(work.parts)
    rows: dict[int, list[tuple[int, int, int]]] = {}
    for row, (first, count) in enumerate(zip(work.part_first, work.part_count, strict=True)):
        for part in work.parts[first : first + count].tolist():
            owner, block, begin, end = found[part]
            assert owner == row
            rows.setdefault(row, []).append((block, begin, end))
    assert sorted(rows) == sorted(work.merged.tolist())
    for first, size, link, links in work.reading.tolist():
        assert 0 < size <= MOST.reading
        chain = work.links[link : link + links].tolist()
        for row in range(first, first + size):
            assert row not in rows, "a row is read twice"
            rows[row] = [(int(work.blocks[at]), start, start + n) for at, start, n in chain]
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_each_row_gets_its_whole_context_in_order(seed: int) -> None:
    shares = batch(seed)
    work = plan_work(shares, MOST)
    rows = stretches_by_row(work)
    for first, share in zip(first_rows(shares), shares, strict=True):
        for row in range(first, first + share.count):
            at = 0
            for _, begin, end in rows[row]:
                assert begin == at, "a gap, or out of order"
                at = end
            assert at == sum(each.length for each in share.pieces)
            last = share.pieces[-1]
            assert work.piece_start[row] == last.start
            assert work.blocks[work.piece_blocks[row]] == last.blocks[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_rows_stretches_do_not_depend_on_others(seed: int) -> None:
    shares = batch(seed)
    together = stretches_by_row(plan_work(shares, MOST))
    for first, share in zip(first_rows(shares), shares, strict=True):
        alone = stretches_by_row(plan_work([share], MOST))
        for offset in range(share.count):
            assert together[first + offset] == alone[offset]


def test_a_piece_is_read_once_for_a_tile_of_rows() -> None:
    scene = piece(1, 0, 100, 0)
    shares = [Share(1, (scene, piece(-1, 100, 10, 100 + n)), True) for n in range(MOST.large + 1)]
    work = plan_work(shares, MOST)
    assert len(work.large) == 1
    # The scene's rest, and everybody's own.
    assert len(work.small) == 1 + len(shares)
    assert len(work.blocks) == 7 + len(shares)


@pytest.mark.parametrize(
    ("length", "count"), [(CHUNK, 1), (CHUNK + 1, 2), (LONG, 4), (LONG + 1, 3), (4096, 4)]
)
def test_stretches_of_speakers(length: int, count: int) -> None:
    work = plan_work([Share(1, (piece(-1, 0, length, 0),), True)], MOST)
    assert len(work.small) == count
    assert max(work.small[:, 5] - work.small[:, 4]) <= (CHUNK if length <= LONG else LONG_CHUNK)
    lengths = (work.small[:, 5] - work.small[:, 4]).tolist()
    assert lengths == sorted(lengths, reverse=True), "long items start first"


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.tuples(st.integers(1, 4), st.integers(0, 12), st.integers(1, 9)),
)
def test_the_tables_are_those_that_plain_loops_make(seed: int, sizes: tuple[int, int, int]) -> None:
    small, more, reading = sizes
    most = TileRows(small, small + more, reading)
    shares = batch(seed)
    fast, plain = plan_work(shares, most), plan_work_plainly(shares, most)
    for field in fields(Work):
        mine, wanted = getattr(fast, field.name), getattr(plain, field.name)
        assert np.array_equal(mine, wanted), field.name
        assert np.asarray(mine).dtype == np.asarray(wanted).dtype, field.name


def test_an_empty_batch() -> None:
    work = plan_work([], MOST)
    assert work.partials == 0
    assert work.links.shape == plan_work_plainly([], MOST).links.shape
    assert not len(work.small) and not len(work.parts)
