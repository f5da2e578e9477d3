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
from pathlib import Path

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
from engine.profile import Profile
from tests.gameserver.stage import byte_tokenizer

BATCH = 1000  # requests a row of the table stands for
WARM_UP = 3  # batches until pool and caches are full
COMPARED = 9  # batches of the aged engine and of a new one
BLOCKS = 2048
OPEN = 32  # requests that wait or run at a time
#: Promises: CPU time of a step at the end against that of a new engine, and growth of memory.
MOST_SLOWDOWN = 0.02
MOST_GROWTH_MB = 2.0
MOST_OBJECTS = 0.01


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
        objects: that Python's collector knows of.
    """

    requests: int
    step_us: float
    steps: int
    rss_mb: float
    objects: int


class Soak:
    """An engine under a stream of requests."""

    def __init__(self, policy: str, batch: int, blocks: int, seed: int = 0) -> None:
        tokenizer = byte_tokenizer()
        self._chance = random.Random(seed)
        self._batch = batch
        config = EngineConfig(scheduling_policy=policy)  # type: ignore[arg-type]
        runner = Counter(256)
        self.pool = BlockPool(blocks, config.block_size)
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
        chance.seed(self._number % self._batch)  # every batch is the same work
        left, open_requests, steps, spent = self._batch, 0, 0, 0.0
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
        player = f"player {number % self._batch if chance.random() < 0.5 else number}"
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


@dataclass(frozen=True, slots=True)
class Result:
    """What a soak has shown.

    Attributes:
        rows: the batches after the warm-up.
        aged_us, fresh_us: CPU time a step of the engine that has served them all, and of a new one
            after its warm-up. Their batches alternate, so that what disturbs one disturbs both; the
            medians are given.
        lost: what did not come back.
    """

    rows: list[Batch]
    aged_us: float
    fresh_us: float
    lost: list[str]

    def broken(self, slowdown: float, growth_mb: float) -> list[str]:
        """The promises that were not kept.

        Memory is compared from a quarter of the way on: some books (the accounts of `fair`) have a
        bound that takes thousands of requests to reach.
        """
        first, last = self.rows[len(self.rows) // 4], self.rows[-1]
        found = [*self.lost]
        if self.aged_us > self.fresh_us * (1 + slowdown):
            found.append(f"a step went from {self.fresh_us:.1f} to {self.aged_us:.1f} us of CPU")
        if last.rss_mb > first.rss_mb + growth_mb:
            found.append(f"memory went from {first.rss_mb:.1f} to {last.rss_mb:.1f} MB")
        if last.objects > first.objects * (1 + MOST_OBJECTS):
            found.append(f"objects went from {first.objects:,} to {last.objects:,}")
        return found


def soak(
    requests: int,
    policy: str,
    on_batch: Callable[[Batch], None] = lambda batch: None,
    *,
    batch: int = BATCH,
    blocks: int = BLOCKS,
    profile: Profile | None = None,
) -> Result:
    """Run so many requests, then as many more as the comparison takes."""
    stage, process = Soak(policy, batch, blocks), psutil.Process()
    if profile is not None:
        stage.engine.attach(profile)
    rows: list[Batch] = []
    lost: list[str] = []
    rest: dict[str, float] | None = None
    for number in range(max(requests // batch, WARM_UP + 2)):
        gc.collect()
        steps, spent = stage.batch()
        gc.collect()
        rss, objects = process.memory_info().rss / 1024**2, len(gc.get_objects())
        row = Batch((number + 1) * batch, spent / steps * 1e6, steps, rss, objects)
        on_batch(row)
        now = stage.at_rest()
        if number < WARM_UP:
            continue
        rows.append(row)
        rest = rest or now
        if now != rest:
            lost.append(f"after {row.requests} requests the gauges are {now}, not {rest}")
    fresh = Soak(policy, batch, blocks)
    for _ in range(WARM_UP):
        fresh.batch()
    times: list[tuple[float, float]] = []
    for _ in range(COMPARED):
        pair = []
        for engine in (stage, fresh):
            gc.collect()
            steps, spent = engine.batch()
            pair.append(spent / steps * 1e6)
        times.append((pair[0], pair[1]))
    aged, new = (statistics.median(column) for column in zip(*times, strict=True))
    return Result(rows, aged, new, lost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument(
        "--policy", choices=("priority", "fair", "fifo", "elastic"), default="priority"
    )
    parser.add_argument(
        "--profile", type=Path, help="file for where time went; with it a step takes longer"
    )
    a = parser.parse_args()
    profile = Profile() if a.profile else None
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{a.requests:,} requests, policy {a.policy}", total=a.requests)
        result = soak(
            a.requests,
            a.policy,
            lambda row: bar.update(task, completed=row.requests),
            profile=profile,
        )
        rows = result.rows
    table = Table("requests", "steps", "CPU a step [us]", "RSS [MB]", "objects")
    for row in rows[:: max(len(rows) // 12, 1)] + rows[-1:]:
        table.add_row(
            f"{row.requests:,}",
            f"{row.steps}",
            f"{row.step_us:.1f}",
            f"{row.rss_mb:.1f}",
            f"{row.objects:,}",
        )
    Console().print(table)
    print(f"a step of this engine now {result.aged_us:.1f} us, of a new one {result.fresh_us:.1f}")
    if profile is not None:
        print(f"profile in {a.profile}, trace in {profile.write(a.profile)}")
    elif broken := result.broken(MOST_SLOWDOWN, MOST_GROWTH_MB):
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
