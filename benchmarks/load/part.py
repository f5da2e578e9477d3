"""What a part of the load test is, and what it has to say."""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.load.crowd import Bus
from benchmarks.load.node import Node
from tests.gameserver.player import Player

Say = Callable[[str], None]


@dataclass(slots=True)
class Promise:
    """A bound, and what was measured."""

    label: str
    value: float
    bound: float
    unit: str = ""
    most: bool = True

    @property
    def kept(self) -> bool:
        """Whether the bound holds."""
        return self.value <= self.bound if self.most else self.value >= self.bound


@dataclass(slots=True)
class Result:
    """What one part found.

    Attributes:
        size: what it was run at.
        rows: a table; each row has the same columns.
        notes: what a reader should know.
        cores: that the machine has.
        others: cores that others took meanwhile.
    """

    part: str
    size: dict[str, Any]
    promises: list[Promise] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    when: str = ""
    cores: int = os.cpu_count() or 1
    others: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For the file of results."""
        return asdict(self)

    @classmethod
    def of(cls, line: dict[str, Any]) -> Self:
        """Back from the file."""
        promises = [Promise(**promise) for promise in line.pop("promises")]
        return cls(promises=promises, **line)


class Stage(AsyncExitStack):
    """Nodes, crowds and a folder, all gone at the end; and a look at what else was computing."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self.say = say
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self._nodes: list[Node] = []
        self._started = time.monotonic()
        self._busy = _busy_s()

    async def node(self, node: Node) -> Node:
        """Start a node."""
        self.say("starting a node")
        self.callback(node.kill)
        return await node.start()

    async def bus(self) -> Bus:
        """A process of guests."""
        bus = Bus()
        self.push_async_callback(bus.stop)
        return await bus.start()

    def others(self) -> float:
        """Cores in use by processes that are not ours, on average since the beginning."""
        me = psutil.Process()
        family = [me, *me.children(recursive=True)]
        ours = sum(sum(process.cpu_times()[:2]) for process in family)
        seconds = time.monotonic() - self._started
        gone = sum(me.cpu_times()[2:4])  # children that have ended
        return max(0.0, (_busy_s() - self._busy - ours - gone) / seconds)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


async def first_words_ms(player: Player, turns: int) -> list[float]:
    """Milliseconds from a line to the first word of its answer, so many times."""
    found = []
    for _ in range(turns):
        began = time.perf_counter()
        accepted = await player.say()
        start = await player.get("npc.turn.start", cause=[accepted["d"]["msg"]])
        await player.get("npc.delta", turn=start["d"]["turn"])
        found.append((time.perf_counter() - began) * 1000)
        await player.get("npc.turn.end", turn=start["d"]["turn"])
    return found


def p(values: list[float], share: float) -> float:
    """The value below which that share of the others lies; 0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


async def until(
    condition: Callable[[], Awaitable[bool]], seconds: float, every: float = 0.5
) -> bool:
    """Wait until something holds; False if it does not in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await condition():
            return True
        await asyncio.sleep(every)
    return False
