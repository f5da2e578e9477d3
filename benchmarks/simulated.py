"""A device that only passes the time: the real engine on a clock of its own.

Steps cost what they were measured to cost (results/h200.md, results/cpu.md): so much for a step,
for each speaker and for each token read. Deterministic; nothing depends on the machine it runs on.
"""

from dataclasses import dataclass

from benchmarks.shapes import NoText
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.decoding.sampling import Sampled
from engine.loop import Engine
from engine.overlap import OverlapEngine
from engine.plan import StepPlan
from engine.prefixes import Prefix
from engine.request import Request
from gameserver.bench.workload import Line


@dataclass(frozen=True, slots=True)
class Device:
    """What a step costs, in milliseconds.

    Attributes:
        base, speaker, token: a step, each speaker in it, each token read.
        tile: rows of a step that reads are filled up to a multiple of this.
        host: what the host does for each sequence of a step.
        launch: what the host does to start a step that reads.
        overlap: whether the host works while the device does.
    """

    base: float
    speaker: float
    token: float
    tile: int = 1
    host: float = 0.0
    launch: float = 0.0
    overlap: bool = False


DEVICES = {
    "h200": Device(5.0, 0.0224, 0.0235, tile=128, host=0.008, launch=1.5, overlap=True),
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
        self.trace = False  # whether every step is printed
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
        filled = -(-plan.rows // device.tile) * device.tile - speakers if read else 0
        took = device.base + device.speaker * speakers + device.token * filled
        begun = max(self._clock.now, self._free_at)
        self._free_at = begun + took / 1000
        if self.trace:
            print(f"{1000 * begun:9.1f} +{took:6.1f} ms: {speakers:4} speak, {read:5} read")
        drawn = [Sampled(7)] * plan.samples
        return Landing(self._clock, self._free_at, drawn)

    def needs_host(self, request: Request) -> bool:
        """See `engine.overlap.Launcher.needs_host`."""
        return False


class SimulatedStage:
    """An engine on a simulated device.

    Attributes:
        engine, clock, runner: what it is made of.
    """

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
