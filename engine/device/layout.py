"""From a plan to the arrays of a step: which rows, which KV, which sampling parameters."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from engine.device.tables import StepArrays, StepSize
from engine.plan import SequenceStep
from engine.prefixes import Prefix
from engine.request import Request, State
from kernels.gpu.sampling import PARAMETERS
from kernels.tree_work import Piece, Share, TileRows, plan_work

Ints = npt.NDArray[np.int32]

#: Prefix nodes whose blocks are kept as arrays.
_KEPT_NODES = 4096


class Layout:
    """Lays steps out. What a reply reads is put together once, when it begins.

    Args:
        tiles: batch rows per item of tree attention.
        trash: a block that padding rows may write to.
    """

    def __init__(self, tiles: TileRows, trash: int) -> None:
        self._tiles = tiles
        self._trash = np.array([trash], np.int32)
        # With the list of blocks that it was made of: whoever gets other blocks gets another list.
        self._replies: dict[Request, tuple[list[int], Share]] = {}
        self._nodes: dict[int, tuple[list[int], Piece]] = {}

    def arrange(
        self,
        shares: Sequence[SequenceStep],
        replies: Sequence[Request],
        *,
        fed_back: Mapping[Request, int],
        parameters: Mapping[Request, Ints],
        size: StepSize,
    ) -> StepArrays:
        """Lay out a step.

        Args:
            shares, replies: the plan's.
            fed_back: requests whose last token stands in the device's array of drawn tokens, and
                where.
            parameters: row of the sampling table of each request that draws a token.
            size: how much the step computes; what is beyond the plan's is padding.
        """
        ids = np.zeros(size.rows, np.int32)
        positions = np.zeros(size.rows, np.int32)
        drawing: list[Request] = []
        drawn_from: list[int] = []
        row = 0
        for share in shares:
            owner, end = share.owner, row + len(share.tokens)
            ids[row:end] = share.tokens
            positions[row:end] = np.arange(share.start, share.start + len(share.tokens))
            if share.sample:
                assert isinstance(owner, Request)
                if owner in fed_back:
                    ids[end - 1] = -1 - fed_back[owner]
                drawing.append(owner)
                drawn_from.append(end - 1)
            row = end
        used = row + len(replies)
        ids[row:used] = [
            -1 - fed_back[reply] if reply in fed_back else reply.tokens[reply.computed]
            for reply in replies
        ]
        positions[row:used] = [reply.base + reply.computed for reply in replies]
        drawing += replies
        drawn_from += range(row, used)
        table = [parameters[request] for request in drawing]
        work = plan_work([*map(self._share, shares), *map(self._reply, replies)], self._tiles)
        self._forget(len(replies))
        sections = {
            "ids": ids,
            "positions": positions,
            "sample_rows": _padded(np.array(drawn_from, np.int32), size.samples, -1),
            "table": _padded(np.array(table, np.int32).reshape(-1, PARAMETERS), size.samples),
            "piece_start": _padded(work.piece_start, size.rows),
            # Padding is written to the block at the very start of the table.
            "piece_blocks": _padded(work.piece_blocks + 1, size.rows),
            "part_first": _padded(work.part_first, size.rows),
            "part_count": _padded(work.part_count, size.rows),
            "merged": _merged(work.merged, used, size),
            "counts": np.array([len(work.small), len(work.large), len(work.reading)], np.int32),
            "rows": work.rows,
            "parts": work.parts,
            "small": _shifted(work.small, 2),
            "large": _shifted(work.large, 2),
            "reading": work.reading,
            "links": _shifted(work.links, 0),
            "blocks": np.concatenate((self._trash, work.blocks)),
        }
        return StepArrays(sections, work.partials)

    def _share(self, share: SequenceStep) -> Share:
        """One sequence's rows and the pieces they see."""
        owner, count, own = share.owner, len(share.tokens), share.segments[-1]
        if isinstance(owner, Prefix):
            above, key = owner.chain()[:-1], owner.id
        elif owner.speaking:
            return self._reply(owner)
        else:
            above, key = owner.chain, -1
        start = share.start + count - own.length
        piece = Piece(key, start, own.length, np.array(own.blocks, np.int32))
        return Share(count, (*map(self._node, above), piece), speaking=False)

    def _reply(self, reply: Request) -> Share:
        """A speaker's row. It may be replayed from these tables until the reply ends: all its room
        is in them.
        """
        blocks, share = self._replies.get(reply, (None, None))
        if share is None or blocks is not reply.blocks:
            room = np.array(reply.blocks, np.int32)
            own = Piece(-1, reply.base, reply.own_limit, room)
            share = Share(1, (*map(self._node, reply.chain), own), speaking=True)
            self._replies[reply] = reply.blocks, share
        return share

    def _node(self, node: Prefix) -> Piece:
        blocks, piece = self._nodes.get(node.id, (None, None))
        if piece is None or blocks is not node.blocks:
            start = node.total - node.length
            piece = Piece(node.id, start, node.length, np.array(node.blocks, np.int32))
            self._nodes[node.id] = node.blocks, piece
        return piece

    def _forget(self, replies: int) -> None:
        """Let go of replies that have ended, now and then, and of nodes when there are many."""
        if len(self._replies) > 2 * replies + 64:
            self._replies = {
                reply: known
                for reply, known in self._replies.items()
                if reply.state is not State.FINISHED
            }
        if len(self._nodes) > _KEPT_NODES:
            self._nodes.clear()


def _padded(array: Ints, entries: int, value: int = 0) -> Ints:
    """So many entries, the last ones `value`."""
    padded = np.full((entries, *array.shape[1:]), value, np.int32)
    padded[: len(array)] = array
    return padded


def _merged(rows: Ints, used: int, size: StepSize) -> Ints:
    """Rows whose results are merged. Those of padding are merged from nothing, as far as there is
    room for them; zeros raise no alarm further on.
    """
    padding = np.arange(used, size.rows, dtype=np.int32)
    merged = np.concatenate((rows, padding))[: max(size.merged, len(rows))]
    return _padded(merged, max(size.merged, len(merged)), -1)


def _shifted(entries: Ints, column: int) -> Ints:
    """Items or links whose blocks, named in `column`, lie one entry further on."""
    moved = entries.copy()
    moved[:, column] += 1
    return moved
