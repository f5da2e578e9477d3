"""A step's plan as tables in device memory.

All tables are sections of one int32 buffer. A captured step reads fixed addresses, so its buffer
has a section of fixed room for everything; a step that is not captured gets one made to measure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.gpu.sampling import PARAMETERS
from kernels.gpu.tree_attention import WorkTables
from kernels.tree_work import ITEM_FIELDS, LINK_FIELDS, READING_FIELDS

Ints = npt.NDArray[np.int32]

#: Sections and how many numbers an entry has; in this order in memory. Those up to `table` say
#: which tokens are fed and how they continue, the others which KV is read.
_WIDTHS = {
    "ids": 1,
    "positions": 1,
    "sample_rows": 1,
    "table": PARAMETERS,
    "piece_start": 1,
    "piece_blocks": 1,
    "part_first": 1,
    "part_count": 1,
    "merged": 1,
    "counts": 1,
    "rows": 1,
    "parts": 1,
    "small": ITEM_FIELDS,
    "large": ITEM_FIELDS,
    "reading": READING_FIELDS,
    "links": LINK_FIELDS,
    "blocks": 1,
}
_ALIGNMENT = 32  # numbers; keeps every section on a 128-byte line


@dataclass(frozen=True, slots=True)
class StepSize:
    """How much a step computes.

    Attributes:
        rows: tokens fed.
        samples: tokens drawn.
        merged: rows whose attention is merged from partial results, at least.
        aligned: whether sample i is row i.
    """

    rows: int
    samples: int
    merged: int
    aligned: bool


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step's tables in host memory, by section; see `kernels.tree_work.Work` for most.

    Attributes:
        sections: int32, one entry a row or item.
        partials: partial results the step leaves.
    """

    sections: Mapping[str, Ints]
    partials: int


class StepTables:
    """The sections in device memory.

    Args:
        room: entries of each section.
        device: where.
        uploads: how many may be on their way at once.
    """

    def __init__(self, room: Mapping[str, int], device: torch.device, uploads: int = 1) -> None:
        self._offsets: dict[str, int] = {}
        size = 0
        for name, width in _WIDTHS.items():
            self._offsets[name] = size
            size += -(-room[name] * width // _ALIGNMENT) * _ALIGNMENT
        self.room = dict(room)
        self._buffer = torch.zeros(size, dtype=torch.int32, device=device)
        pinned = device.type != "cpu"
        self._staging = [
            torch.empty(size, dtype=torch.int32, pin_memory=pinned) for _ in range(uploads)
        ]
        self._copied: list[torch.cuda.Event | None] = [None] * uploads
        self._turn = 0

    def fits(self, arrays: StepArrays) -> bool:
        """Whether there is room for these."""
        return all(len(array) <= self.room[name] for name, array in arrays.sections.items())

    def upload(self, sections: Mapping[str, Ints]) -> None:
        """Copy sections to the device in order of the stream.

        The host writes to a staging area only after what it held has been copied.
        """
        self._turn = (self._turn + 1) % len(self._staging)
        event = self._copied[self._turn]
        if event is not None:
            event.synchronize()
        staging = self._staging[self._turn]
        host = staging.numpy()
        stretches: list[tuple[int, int]] = []
        for name in _WIDTHS:
            array = sections.get(name)
            if array is None or not array.size:
                continue
            start = self._offsets[name]
            end = start + array.size
            host[start:end] = array.reshape(-1)
            # Sections that are nearly full go in one copy with the next.
            if stretches and start - stretches[-1][1] <= _ALIGNMENT * 32:
                stretches[-1] = (stretches[-1][0], end)
            else:
                stretches.append((start, end))
        for start, end in stretches:
            self._buffer[start:end].copy_(staging[start:end], non_blocking=True)
        if self._buffer.is_cuda:
            event = event or torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._copied[self._turn] = event

    def section(self, name: str, entries: int | None = None) -> torch.Tensor:
        """A view of a section's first entries (all it has room for)."""
        width = _WIDTHS[name]
        count = self.room[name] if entries is None else entries
        start = self._offsets[name]
        view = self._buffer[start : start + count * width]
        return view.view(count, width) if width > 1 else view

    def work(self, size: StepSize) -> WorkTables:
        """The tables of tree attention, as far as a step of this size needs them."""
        return WorkTables(
            rows=self.section("rows"),
            blocks=self.section("blocks"),
            small=self.section("small"),
            large=self.section("large"),
            # Where each row is drawn from, nobody reads a tile of rows.
            reading=self.section("reading", 0 if size.aligned else None),
            links=self.section("links"),
            merged=self.section("merged", size.merged),
            counts=self.section("counts"),
            parts=self.section("parts"),
            part_first=self.section("part_first"),
            part_count=self.section("part_count"),
            positions=self.section("positions"),
        )
