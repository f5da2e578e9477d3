"""From a plan to the arrays of a step: which rows, which KV, which sampling parameters."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from engine.device.tables import StepArrays, StepSize
from engine.plan import SequenceStep
from engine.request import Request
from kernels.gpu.sampling import PARAMETERS
from kernels.tree_work import Piece, Share, TileRows, plan_work

Ints = npt.NDArray[np.int32]


def arrange(
    sequences: Sequence[SequenceStep],
    *,
    fed_back: Mapping[Request, int],
    parameters: Mapping[Request, Ints],
    size: StepSize,
    tiles: TileRows,
    trash: int,
) -> StepArrays:
    """Lay out a step.

    Args:
        sequences: the plan's.
        fed_back: requests whose last token stands in the device's array of drawn tokens, and where.
        parameters: row of the sampling table of each request that draws a token.
        size: how much the step computes; what is beyond the plan's is padding.
        tiles: batch rows per item of tree attention.
        trash: a block that padding rows may write to.
    """
    ids = np.zeros(size.rows, np.int32)
    positions = np.zeros(size.rows, np.int32)
    sample_rows = np.full(size.samples, -1, np.int32)
    table = np.zeros((size.samples, PARAMETERS), np.int32)
    shares: list[Share] = []
    nodes: dict[int, Piece] = {}
    row = drawn = 0
    for share in sequences:
        owner, count = share.owner, len(share.tokens)
        if count == 1:
            ids[row], positions[row] = share.tokens[0], share.start
        else:
            ids[row : row + count] = share.tokens
            positions[row : row + count] = np.arange(share.start, share.start + count)
        if share.sample and owner in fed_back:
            assert isinstance(owner, Request)
            ids[row + count - 1] = -1 - fed_back[owner]
        shares.append(_share(share, row, nodes))
        row += count
        if share.sample:
            assert isinstance(owner, Request)
            sample_rows[drawn] = row - 1
            table[drawn] = parameters[owner]
            drawn += 1
    work = plan_work(shares, tiles)
    # Padding is written to the block at the very start of the table.
    padding = size.rows - row
    sections = {
        "ids": ids,
        "positions": positions,
        "sample_rows": sample_rows,
        "table": table,
        "piece_start": np.pad(work.piece_start, (0, padding)),
        "piece_blocks": np.pad(work.piece_blocks + 1, (0, padding)),
        "part_first": np.pad(work.part_first, (0, padding)),
        "part_count": np.pad(work.part_count, (0, padding)),
        "merged": _merged(work.merged, row, size),
        "counts": np.array([len(work.small), len(work.large), len(work.reading)], np.int32),
        "rows": work.rows,
        "parts": work.parts,
        "small": _shifted(work.small, 2),
        "large": _shifted(work.large, 2),
        "reading": work.reading,
        "links": _shifted(work.links, 0),
        "blocks": np.concatenate((np.array([trash], np.int32), work.blocks)),
    }
    return StepArrays(sections, work.partials)


def _share(share: SequenceStep, row: int, nodes: dict[int, Piece]) -> Share:
    """One sequence's rows and the pieces they see; `nodes` remembers the shared ones."""
    owner = share.owner
    speaking = isinstance(owner, Request) and owner.speaking
    pieces: list[Piece] = []
    start = 0
    for segment in share.segments:
        if segment.node < 0:
            assert isinstance(owner, Request)
            # A reply may be replayed from these tables until it ends: all its room is in them.
            length = owner.own_limit if speaking else segment.length
            room = owner.blocks if speaking else segment.blocks
            pieces.append(Piece(-1, start, length, np.array(room, np.int32)))
        else:
            known = nodes.get(segment.node)
            if known is None or known.length != segment.length:
                blocks = np.array(segment.blocks, np.int32)
                known = nodes[segment.node] = Piece(segment.node, start, segment.length, blocks)
            pieces.append(known)
        start += segment.length
    return Share(row, len(share.tokens), tuple(pieces), speaking)


def _merged(rows: Ints, used: int, size: StepSize) -> Ints:
    """Rows whose results are merged. Those of padding are merged from nothing, as far as there is
    room for them; zeros raise no alarm further on.
    """
    padding = np.arange(used, size.rows, dtype=np.int32)
    merged = np.concatenate((rows, padding))[: max(size.merged, len(rows))]
    return np.pad(merged, (0, max(size.merged - len(merged), 0)), constant_values=-1)


def _shifted(entries: Ints, column: int) -> Ints:
    """Items or links whose blocks, named in `column`, lie one entry further on."""
    moved = entries.copy()
    moved[:, column] += 1
    return moved
