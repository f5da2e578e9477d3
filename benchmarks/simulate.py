"""What scheduling does, within seconds: the engine under the game's workload on a simulated device.

    python -m benchmarks.simulate                                  # an H200 with an 8B shape
    python -m benchmarks.simulate --device cpu --seeds 5           # two cores, the default model
    python -m benchmarks.simulate --only house --seeds 1 --trace   # every step
    python -m benchmarks.simulate --set step_target_ms=30          # another setting of the engine

The streams of `benchmarks.gpu --parts stream,quests` and the bursts and quest-givers of
`benchmarks.cpu`. Median over the seeds, and in brackets the worst.
"""

import argparse
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from benchmarks.simulated import DEVICES, Device, SimulatedStage
from benchmarks.streams import arrivals, figures, play
from engine.config import EngineConfig
from engine.params import SamplingParams
from engine.percentile import percentile
from gameserver.bench.workload import PROFILES, Line, build

Figures = dict[str, float]

#: Quest-givers' lines, their length, and the longest that a player waits before the next.
ASKED, SAID, MOST_PAUSE_S = 40, 4, 0.1


@dataclass(frozen=True, slots=True)
class Stream:
    """Lines that arrive over time, or at once if `rate` is 0; see `streams.arrivals`.

    Attributes:
        name: of the row.
        profile: of the lines.
        slots: of the engine.
        quests: whether quest-givers' lines come to a full house.
        classes: whether those lines have a class of their own.
        warm: whether scenes and personas were seen before.
        fresh: whether the engine has learnt nothing yet; otherwise such a stream ran before.
    """

    name: str
    profile: str
    slots: int
    rate: float = 0.0
    quests: bool = False
    classes: bool = False
    warm: bool = False
    fresh: bool = False

    def run(self, device: Device, config: EngineConfig, seed: int, trace: bool = False) -> Figures:
        """See `streams.figures`."""
        config = msgspec.structs.replace(
            config, max_num_seqs=self.slots, reserved_slots=0, max_waiting=4096
        )
        stage = SimulatedStage(device, config)
        if not self.fresh:
            self._play(stage, seed + 500)
        stage.runner.trace = trace
        return self._play(stage, seed)

    def _play(self, stage: SimulatedStage, seed: int) -> Figures:
        out, persona = PROFILES[self.profile].out, stage.persona
        lines = build(self.profile, seed, 7 if self.warm else None)
        if self.warm:
            before = build(self.profile, seed)
            at_once = [0.0] * len(before)
            play(stage.engine, persona, before, at_once, 1, stage.clock, classes=False)
        times = arrivals(lines, self.rate, self.quests, seed)
        replies = play(stage.engine, persona, lines, times, out, stage.clock, classes=self.classes)
        return figures(replies)


@dataclass(frozen=True, slots=True)
class Crowd:
    """Ordinary replies of `out` tokens in all slots they may take and as many waiting, each of
    which is followed by another when it ends; meanwhile quest-givers are asked one by one.
    """

    name: str
    profile: str
    out: int

    def run(self, device: Device, config: EngineConfig, seed: int, trace: bool = False) -> Figures:
        """First tokens of quest-givers when nobody else speaks, and in the crowd."""
        stage, chance = SimulatedStage(device, config), random.Random(seed)
        lines = build(self.profile, seed)
        play(stage.engine, stage.persona, lines, [0.0] * len(lines), 1, stage.clock)
        idle = [self._ask(stage, lines, chance) for _ in range(ASKED)]
        slots = stage.engine._scheduler.pace.max_num_seqs
        for _ in range(2 * slots):
            self._say(stage, self._line(lines, chance, quest=False), self.out, 1)
        for _ in range(3 * slots):
            self._step(stage, lines, chance)
        stage.runner.trace = trace
        busy = [self._ask(stage, lines, chance) for _ in range(ASKED)]
        return {
            "quest_ttft_p50": percentile(busy, 50),
            "quest_ttft_p99": percentile(busy, 99),
            "idle_ttft_p50": statistics.median(idle),
            "ratio": percentile(busy, 99) / statistics.median(idle),
        }

    def _ask(self, stage: SimulatedStage, lines: Sequence[Line], chance: random.Random) -> float:
        """Milliseconds that a quest-giver takes to begin, asked at any moment of a step."""
        asked = stage.clock() + chance.uniform(0, MOST_PAUSE_S)
        while stage.engine.has_work and stage.clock() < asked:
            self._step(stage, lines, chance)
        stage.clock.rest(asked)
        mine = self._say(stage, self._line(lines, chance, quest=True), SAID, 0)
        first = 0.0
        while True:
            for request, ended in self._step(stage, lines, chance):
                if request == mine:
                    first = first or stage.clock()
                    if ended:
                        return 1000 * (first - asked)

    def _step(
        self, stage: SimulatedStage, lines: Sequence[Line], chance: random.Random
    ) -> list[tuple[int, bool]]:
        """Compute a step; who said something, and whether it was the last."""
        said = [(output.request_id, output.usage) for output in stage.engine.step()]
        for _, usage in said:
            if usage is not None and usage.completion_tokens == self.out:
                self._say(stage, self._line(lines, chance, quest=False), self.out, 1)
        return [(request, usage is not None) for request, usage in said]

    @staticmethod
    def _say(stage: SimulatedStage, line: Line, out: int, priority: int) -> int:
        params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=True)
        prefix = stage.persona(line)
        return stage.engine.submit(line.turn, params, prefix=prefix, priority=priority).id

    @staticmethod
    def _line(lines: Sequence[Line], chance: random.Random, *, quest: bool) -> Line:
        line = chance.choice([line for line in lines if line.quest == quest])
        turn = tuple(chance.randrange(100, 32000) for _ in line.turn)
        return replace(line, turn=turn)


def streams_on_a_gpu() -> Iterator[Stream]:
    """Those of `benchmarks.gpu`, and some in which quest-givers are a class of their own."""
    for fresh in (False, True):
        name = "at once, cold" + (", nothing learnt" if fresh else "")
        yield Stream(name, "gpu", 256, fresh=fresh)
    yield Stream("at once, cold, quests first", "gpu", 256, classes=True)
    yield Stream("at once, new lines", "gpu", 256, warm=True)
    for rate in (50, 100, 150):
        yield Stream(f"{rate}/s, cold", "gpu", 256, rate=rate)
        yield Stream(f"{rate}/s, new lines", "gpu", 256, rate=rate, warm=True)
    yield Stream("100/s, cold, quests first", "gpu", 256, rate=100, classes=True)
    yield Stream("quests to a full house", "gpu", 64, quests=True, classes=True)
    yield Stream("quests to a full house, equal", "gpu", 64, quests=True)


WORKLOADS: dict[str, Sequence[Stream | Crowd]] = {
    "h200": tuple(streams_on_a_gpu()),
    "cpu": (
        Stream("at once, cold", "cpu", 16),
        Stream("at once, cold, nothing learnt", "cpu", 16, fresh=True),
        Stream("at once, new lines", "cpu", 16, warm=True),
        Crowd("replies fill all slots", "cpu", 600),
        Crowd("replies come and go", "cpu", 48),
    ),
}

COLUMNS = (
    "tok_s", "ttft_p50", "ttft_p99", "quest_ttft_p50", "quest_ttft_p99", "other_ttft_p99",
    "gap_p50", "gap_p99", "gap_max", "ratio",
)  # fmt: skip


def settings(device: str, **changes: object) -> EngineConfig:
    """Of an engine on this device, at its own pace but for these changes."""
    kind = "cpu" if device == "cpu" else "cuda"
    return EngineConfig(device=kind, **changes)  # type: ignore[arg-type]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=DEVICES, default="h200")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of the engine")
    a = parser.parse_args()
    changes = {name: json.loads(value) for name, value in (x.split("=") for x in a.set)}
    config = settings(a.device, **changes)
    print(f"{'ms':30}", *(f"{name:>14}" for name in COLUMNS))
    for workload in WORKLOADS[a.device]:
        if a.only in workload.name:
            device = DEVICES[a.device]
            runs = [workload.run(device, config, seed, a.trace) for seed in range(a.seeds)]
            print(f"{workload.name:30}", *(_cell(runs, name) for name in COLUMNS), flush=True)


def _cell(runs: Sequence[Figures], name: str) -> str:
    values = [run[name] for run in runs if name in run]
    if not values:
        return " " * 14
    worst = min(values) if name == "tok_s" else max(values)
    return f"{statistics.median(values):.4g} ({worst:.4g})".rjust(14)


if __name__ == "__main__":
    main()
