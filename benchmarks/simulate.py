"""The real engine on a device that only passes the time: what scheduling does, within seconds.

    python -m benchmarks.simulate                        # an H200 with an 8B shape, every workload
    python -m benchmarks.simulate --device cpu --seeds 3
    python -m benchmarks.simulate --only quests --trace  # every step

Steps cost what they were measured to cost (see results/h200.md and results/cpu.md): so much for a
step, for each speaker and for each token read. Deterministic: nothing depends on the machine.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.shapes import NoText
from benchmarks.streams import arrivals, figures, play
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.decoding.sampling import Sampled
from engine.loop import Engine
from engine.overlap import OverlapEngine
from engine.plan import StepPlan
from engine.prefixes import Prefix
from engine.request import Request
from gameserver.bench.workload import PROFILES, Line, build


@dataclass(frozen=True, slots=True)
class Device:
    """What a step costs, in milliseconds.

    Attributes:
        base, speaker, token: a step, each speaker in it, each token read.
        host: what the host does for each sequence of a step.
        launch: what the host does to start a step that reads.
        overlap: whether the host works while the device does.
    """

    base: float
    speaker: float
    token: float
    host: float = 0.0
    launch: float = 0.0
    overlap: bool = False


DEVICES = {
    "h200": Device(5.0, 0.0224, 0.0235, host=0.008, launch=6.0, overlap=True),
    "cpu": Device(5.0, 0.6, 0.38),
}


class SimulatedClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def rest(self, until: float) -> None:
        """See `streams.Clock`."""
        self.now = max(self.now, until)


@dataclass(frozen=True, slots=True)
class Landing:
    """A step under way that ends at `at` (seconds)."""

    clock: SimulatedClock
    at: float
    drawn: list[Sampled]

    def result(self) -> list[Sampled]:
        """See `engine.overlap.Launched`."""
        self.clock.rest(self.at)
        return self.drawn


class SimulatedRunner:
    """Computes nothing, and takes as long for it as a device would."""

    def __init__(self, device: Device, clock: SimulatedClock) -> None:
        self._device, self._clock = device, clock
        self.trace = False
        self._free_at = 0.0

    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `engine.runner.Runner.run`."""
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> Landing:
        """See `engine.overlap.Launcher.launch`."""
        device, speakers = self._device, plan.speakers
        read = plan.rows - speakers
        self._clock.now += (
            device.host * (len(plan.shares) + len(plan.replies)) + device.launch * (read > 0)
        ) / 1000
        took = device.base + device.speaker * speakers + device.token * read
        begun = max(self._clock.now, self._free_at)
        self._free_at = begun + took / 1000
        if self.trace:
            print(f"{1000 * begun:9.1f} +{took:6.1f} ms: {speakers:4} speak, {read:5} read")
        drawn = [Sampled(7)] * plan.samples
        return Landing(self._clock, self._free_at, drawn)

    def needs_host(self, request: Request) -> bool:
        """See `engine.overlap.Launcher.needs_host`."""
        return False


class Stage:
    """An engine on a simulated device, and the handles of open scenes and personas."""

    def __init__(self, device: Device, config: EngineConfig) -> None:
        self.clock = SimulatedClock()
        self.runner = SimulatedRunner(device, self.clock)
        pool = BlockPool(60_000, config.block_size)
        loop = OverlapEngine if device.overlap else Engine
        self.engine = loop(self.runner, NoText(1 << 17), pool, 8192, config, self.clock)  # type: ignore[arg-type]

    def persona(self, line: Line) -> Prefix:
        """The handle of a line's scene and persona."""
        scene = self.engine.create_prefix(line.scene)
        return self.engine.create_prefix(line.persona, scene)


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream of lines to an engine with `slots` slots; see `streams.arrivals`.

    Attributes:
        warm: whether scenes and personas were seen before.
        equal: whether quests are lines as any other.
        fresh: whether the engine has learnt nothing yet; otherwise the stream ran once before.
    """

    name: str
    profile: str
    slots: int
    rate: float = 0.0
    quests: bool = False
    equal: bool = False
    warm: bool = False
    fresh: bool = False


WORKLOADS = {
    "h200": [
        Workload("at once, cold", "gpu", 256),
        Workload("at once, cold, nothing learnt", "gpu", 256, fresh=True),
        Workload("at once, warm", "gpu", 256, warm=True),
        *(
            Workload(f"{rate}/s, {'warm' if warm else 'cold'}", "gpu", 256, rate=rate, warm=warm)
            for rate in (50, 100, 150)
            for warm in (False, True)
        ),
        Workload("quests to a full house", "gpu", 64, quests=True),
        Workload("the same, equal", "gpu", 64, quests=True, equal=True),
    ],
    "cpu": [
        Workload("at once, cold", "cpu", 16),
        Workload("at once, cold, nothing learnt", "cpu", 16, fresh=True),
        Workload("new lines", "cpu", 16, warm=True),
    ],
}


def run(
    device: Device, workload: Workload, config: EngineConfig, seed: int, trace: bool = False
) -> dict[str, float]:
    """Figures of one run of a workload, see `streams.figures`."""
    config = msgspec.structs.replace(config, max_num_seqs=workload.slots)
    stage = Stage(device, config)
    out = PROFILES[workload.profile].out

    def stream(seed: int) -> dict[str, float]:
        lines = build(workload.profile, seed, 7 if workload.warm else None)
        if workload.warm:
            before = build(workload.profile, seed)
            play(stage.engine, stage.persona, before, [0.0] * len(before), 1, stage.clock)
        times = arrivals(lines, workload.rate, workload.quests, seed)
        classes = not workload.equal
        return figures(
            play(stage.engine, stage.persona, lines, times, out, stage.clock, classes=classes)
        )

    if not workload.fresh:
        stream(seed + 500)
    stage.runner.trace = trace
    return stream(seed)


COLUMNS = (
    "tok_s", "ttft_p50", "ttft_p99", "quest_ttft_p50", "quest_ttft_p99", "other_ttft_p99",
    "gap_p50", "gap_p99", "gap_max",
)  # fmt: skip


def main() -> None:
    """Print a table: medians over the seeds, and what the worst of them had."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=DEVICES, default="h200")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of the engine")
    a = parser.parse_args()
    settings = {k: json.loads(v) for k, v in (item.split("=") for item in a.set)}
    config = EngineConfig(**{"reserved_slots": 0, "max_waiting": 4096, **settings})
    print(f"{'':32}", *(f"{name.replace('ttft', '').strip('_'):>14}" for name in COLUMNS))
    for workload in WORKLOADS[a.device]:
        if a.only not in workload.name:
            continue
        runs = [run(DEVICES[a.device], workload, config, s, a.trace) for s in range(a.seeds)]
        print(f"{workload.name:32}", *(cell([r[name] for r in runs]) for name in COLUMNS))


def cell(values: Sequence[float]) -> str:
    """The median, and the largest."""
    return f"{statistics.median(values):7.5g} {max(values):6.4g}".rjust(14)


if __name__ == "__main__":
    main()
