"""Lines that arrive over time: time to first token by class, and gaps between tokens.

    python -m benchmarks.gpu_stream --rate 100                    # Poisson arrivals, cold scenes
    python -m benchmarks.gpu_stream --rate 0                      # everybody at once, cold
    python -m benchmarks.gpu_stream --slots 64 --quests           # quests come to a full house

The engine steps in this thread and takes in what has arrived before each step; times are those at
which `step` handed tokens out. Scenes of the measured run were never seen before, unless --warm.
"""

import argparse
import gc
import itertools
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu import Report, Stage
from benchmarks.shapes import SHAPES
from engine.params import SamplingParams
from gameserver.bench.workload import PROFILES, Line, build


@dataclass
class Reply:
    """When a line came and when its tokens did, in seconds."""

    quest: bool
    arrived: float
    tokens: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        return 1000 * (self.tokens[0] - self.arrived)

    @property
    def gaps(self) -> list[float]:
        return [1000 * (b - a) for a, b in itertools.pairwise(self.tokens)]


def arrivals(lines: Sequence[Line], rate: float, quests: bool, seed: int) -> list[float]:
    """Seconds at which the lines come; with `quests`, ordinary ones at once and quests later."""
    chance, at = random.Random(seed), 0.0
    times = []
    for _ in lines:
        times.append(at)
        at += chance.expovariate(rate) if rate else 0.0
    if quests:
        late = iter(0.3 + number / 50 for number in range(len(lines)))
        times = [next(late) if line.quest else 0.0 for line in lines]
    return times


def play(
    stage: Stage, lines: Sequence[Line], times: Sequence[float], out: int, classes: bool
) -> list[Reply]:
    """Run one trace; all replies."""
    queue = sorted(range(len(lines)), key=lambda number: times[number])
    handles = {number: stage.persona(lines[number]) for number in queue}
    params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=True)
    replies: dict[int, Reply] = {}
    engine = stage.engine
    gc.collect()
    started = time.perf_counter()
    while queue or engine.has_work:
        now = time.perf_counter() - started
        while queue and times[queue[0]] <= now:
            number = queue.pop(0)
            line = lines[number]
            priority = 0 if classes and line.quest else 1
            request = engine.submit(line.turn, params, prefix=handles[number], priority=priority)
            replies[request.id] = Reply(line.quest, times[number])
        if not engine.has_work:
            time.sleep(0.0005)
            continue
        outputs = engine.step()
        now = time.perf_counter() - started
        for output in outputs:
            assert output.error is None, output.error
            replies[output.request_id].tokens += [now] * len(output.token_ids)
    return list(replies.values())


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(replies: Sequence[Reply]) -> dict[str, float]:
    """What is reported of one run."""
    gaps = [gap for reply in replies for gap in reply.gaps]
    firsts = {
        "": [reply.first for reply in replies],
        "quest_": [reply.first for reply in replies if reply.quest],
        "other_": [reply.first for reply in replies if not reply.quest],
    }
    end = max(reply.tokens[-1] for reply in replies)
    found = {"tok_s": sum(len(reply.tokens) for reply in replies) / end}
    for name, values in firsts.items():
        found[f"{name}ttft_p50"] = percentile(values, 0.5)
        found[f"{name}ttft_p99"] = percentile(values, 0.99)
    found["gap_p50"], found["gap_p99"] = percentile(gaps, 0.5), percentile(gaps, 0.99)
    found["gap_max"] = max(gaps)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama8b")
    parser.add_argument("--profile", choices=PROFILES, default="gpu")
    parser.add_argument("--rate", type=float, default=0.0, help="lines a second; 0 is at once")
    parser.add_argument("--quests", action="store_true", help="quests come to a full house")
    parser.add_argument("--equal", action="store_true", help="quests are no class of their own")
    parser.add_argument("--warm", action="store_true", help="scenes and personas seen before")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--step-target", type=float, default=25.0)
    parser.add_argument("--min-prefill", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    stage = Stage(
        a.shape, slots=a.slots, step_target_ms=a.step_target, min_prefill_tokens=a.min_prefill
    )
    report = Report(
        a.out,
        stream=a.profile,
        rate=a.rate,
        quests=a.quests,
        equal=a.equal,
        warm=a.warm,
        slots=a.slots,
        step_target=a.step_target,
        min_prefill=a.min_prefill,
    )
    gc.freeze()
    runs = []
    out = PROFILES[a.profile].out
    for number in range(a.repetitions + 1):  # the first is a rehearsal
        seed = a.seed + 1000 * number
        lines = build(a.profile, seed, 7 if a.warm else None)
        times = arrivals(lines, a.rate, a.quests, a.seed + number)
        if a.warm:
            stage.say(build(a.profile, seed), 1)
        runs.append(figures(play(stage, lines, times, out, not a.equal)))
        stage.close_scenes()
    measured = runs[1:]
    report.add(
        **{name: statistics.median(run[name] for run in measured) for name in measured[0]},
        runs=len(measured),
    )
    print(
        "spread", {n: (min(r[n] for r in measured), max(r[n] for r in measured)) for n in runs[0]}
    )


if __name__ == "__main__":
    main()
