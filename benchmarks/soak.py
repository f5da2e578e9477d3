"""Very many short requests in a row: nothing may grow, slow down or get lost.

    python -m benchmarks.soak --requests 100000

The engine, its scheduler, pool, prefix tree and text are the real ones; in place of a model stands
a runner that draws tokens from a counter, so that what is measured is all but the forward pass.
Players talk to NPCs of several scenes; histories are found again and evicted, and some players hang
up. Time is simulated, so that every batch is the same work. Prints a table; fails when a promise is
broken.
"""

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.decoding.sampling import Sampled
from engine.loop import Engine
from engine.params import SamplingParams
from engine.plan import StepPlan
from engine.prefixes import Prefix
from tests.gameserver.stage import byte_tokenizer

BATCH = 1000  # requests a row of the table stands for
WARM_UP = 3  # batches until pool and caches are full
NEAR = 5  # batches that are compared at either end
BLOCKS = 2048
OPEN = 32  # requests that wait or run at a time
#: Promises: CPU time of a step in the last batch against the first, and growth of memory.
MOST_SLOWDOWN = 0.02
MOST_GROWTH_MB = 2.0


class Counter:
    """A runner without a model: token after token, the same work for every step."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._next = 0

    def run(self, plan: StepPlan) -> list[Sampled]:
        drawn = []
        for share in plan.sequences:
            if share.sample:
                self._next = (self._next * 31 + 7) % self._vocabulary
                drawn.append(Sampled(self._next))
        return drawn


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch of requests took.

    Attributes:
        requests: finished so far, this batch included.
        step_us: CPU time of this process a step, in microseconds.
        steps: of this batch.
        rss_mb: resident memory after it.
    """

    requests: int
    step_us: float
    steps: int
    rss_mb: float


class Soak:
    """An engine under a stream of requests."""

    def __init__(self, policy: str = "priority", seed: int = 0) -> None:
        tokenizer = byte_tokenizer()
        self._chance = random.Random(seed)
        config = EngineConfig(scheduling_policy=policy)  # type: ignore[arg-type]
        runner = Counter(256)
        self.pool = BlockPool(BLOCKS, config.block_size)
        self._now = 0.0
        self.engine = Engine(runner, tokenizer, self.pool, 2048, config, clock=lambda: self._now)
        self._nodes: list[Prefix] = []
        for scene in range(4):
            root = self.engine.create_prefix([scene] * 300)
            self._nodes += [self.engine.create_prefix([n] * 60, root) for n in range(4)]
        self._number = 0

    def batch(self) -> tuple[int, float]:
        """Run one batch to its end; steps, and CPU seconds of this process in them."""
        engine, chance = self.engine, self._chance
        chance.seed(self._number % BATCH)  # every batch is the same work
        left, open_requests, steps, spent = BATCH, 0, 0, 0.0
        while left or engine.has_work:
            while left and open_requests < OPEN:
                self._submit()
                left -= 1
                open_requests += 1
            started = time.process_time()
            outputs = engine.step()
            spent += time.process_time() - started
            self._now += 0.01
            open_requests -= sum(output.finish is not None for output in outputs)
            steps += 1
        return steps, spent

    def at_rest(self) -> dict[str, float]:
        """The gauges that must come back to where they were."""
        self.engine.check()
        names = ("blocks_held", "running", "waiting", "parked")
        return {name: self.engine.gauges[name] for name in names}

    def _submit(self) -> None:
        number, chance = self._number, self._chance
        self._number += 1
        player = f"player {number % BATCH if chance.random() < 0.5 else number}"
        request = self.engine.submit(
            # Half the talk goes on from a line that was heard before, half is new.
            [number % 64 if chance.random() < 0.5 else 64 + number % 128] * chance.randint(8, 40),
            SamplingParams(max_tokens=chance.randint(4, 16), seed=number, ignore_eos=True),
            prefix=chance.choice(self._nodes),
            priority=chance.choice((0, 1, 1, 2)),
            salt=player,
            shares=(player, f"scene {number % 4}"),
        )
        if chance.random() < 0.05:
            self.engine.cancel(request)


def soak(
    requests: int, policy: str, on_batch: Callable[[Batch], None] = lambda batch: None
) -> tuple[list[Batch], list[str]]:
    """Run so many requests; the batches after the warm-up, and the promises that were broken."""
    stage, process = Soak(policy), psutil.Process()
    rows: list[Batch] = []
    broken: list[str] = []
    rest: dict[str, float] | None = None
    for number in range(max(requests // BATCH, WARM_UP + 2)):
        gc.collect()
        steps, spent = stage.batch()
        gc.collect()
        rss = process.memory_info().rss / 1024**2
        row = Batch((number + 1) * BATCH, spent / steps * 1e6, steps, rss)
        on_batch(row)
        now = stage.at_rest()
        if number < WARM_UP:
            continue
        rows.append(row)
        rest = rest or now
        if now != rest:
            broken.append(f"after {row.requests} requests the gauges are {now}, not {rest}")
    return rows, broken


def judge(rows: list[Batch], slowdown: float, growth_mb: float) -> list[str]:
    """What the rows break of the promises on time and memory.

    The median of the first `NEAR` batches is compared with that of the last: other programs of the
    machine disturb single ones.
    """
    first, last = rows[:NEAR], rows[-NEAR:]
    before, after = (statistics.median(row.step_us for row in few) for few in (first, last))
    broken = []
    if after > before * (1 + slowdown):
        broken.append(f"a step went from {before:.1f} to {after:.1f} us of CPU")
    if rows[-1].rss_mb > rows[0].rss_mb + growth_mb:
        broken.append(f"memory went from {rows[0].rss_mb:.1f} to {rows[-1].rss_mb:.1f} MB")
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument(
        "--policy", choices=("priority", "fair", "fifo", "elastic"), default="priority"
    )
    a = parser.parse_args()
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{a.requests:,} requests, policy {a.policy}", total=a.requests)
        rows, broken = soak(
            a.requests, a.policy, lambda row: bar.update(task, completed=row.requests)
        )
    table = Table("requests", "steps", "CPU a step [us]", "RSS [MB]")
    for row in rows[:: max(len(rows) // 12, 1)] + rows[-1:]:
        table.add_row(
            f"{row.requests:,}", f"{row.steps}", f"{row.step_us:.1f}", f"{row.rss_mb:.1f}"
        )
    Console().print(table)
    broken += judge(rows, MOST_SLOWDOWN, MOST_GROWTH_MB)
    if broken:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
