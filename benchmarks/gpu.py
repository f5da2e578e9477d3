"""The engine on one GPU with random weights: bursts of 256 lines at once, and steady decoding.

    python -m benchmarks.gpu --profiles gpu,long              # bursts: cold, warm, new lines
    python -m benchmarks.gpu --profiles gpu,long --decode     # decode steps at 1, 64 and 256

Greedy, end of sequence ignored; tokens by handle of scene and persona, as the game server does it.
Each measurement is printed as a JSON line, and appended to --out if given.
"""

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import profiler

from benchmarks.shapes import SHAPES, NoText
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.device.build import build_runner
from engine.device.runner import DeviceRunner
from engine.loop import Engine
from engine.models.device_decoder import DeviceDecoder
from engine.outputs import Usage
from engine.overlap import OverlapEngine
from engine.params import SamplingParams
from engine.prefixes import Prefix
from gameserver.bench.workload import PROFILES, Line, build


class Stage:
    """An engine and the handles of the scenes that are open."""

    def __init__(
        self,
        shape: str,
        *,
        eager: bool = False,
        alone: bool = False,
        top_p: float = 1.0,
        slots: int = 256,
        step_target_ms: float = 400.0,  # a burst is about throughput
        min_prefill_tokens: int = 32,
    ) -> None:
        started = time.perf_counter()
        config = EngineConfig(
            max_num_seqs=slots,
            reserved_slots=0,
            max_num_batched_tokens=8192,
            step_target_ms=step_target_ms,
            min_prefill_tokens=min_prefill_tokens,
            max_waiting=4096,
            enforce_eager=eager,
        )
        model = SHAPES[shape]
        decoder = DeviceDecoder.random(model, torch.bfloat16, torch.device("cuda"))
        runner, blocks = build_runner(decoder, config, model.max_len)
        self.runner: DeviceRunner = runner
        pool = BlockPool(blocks, config.block_size)
        tokenizer = NoText(model.vocab_size)
        loop = Engine if alone else OverlapEngine
        self.engine = loop(runner, tokenizer, pool, model.max_len, config)  # type: ignore[arg-type]
        self.blocks = blocks
        self.start_s = time.perf_counter() - started
        self._top_p = top_p
        self._open: dict[tuple[int, ...], Prefix] = {}

    def close_scenes(self) -> None:
        """Give all handles back; what they held may be evicted."""
        for node in reversed(self._open.values()):
            self.engine.release_prefix(node)
        self._open.clear()
        while self.engine.has_work:
            self.engine.step()

    def say(self, lines: Sequence[Line], out: int) -> "Burst":
        """All lines at once; returns when every reply has ended."""
        sampled = self._top_p < 1
        gc.collect()
        torch.cuda.synchronize()
        started = time.perf_counter()
        clock = time.monotonic()
        for line in lines:
            params = SamplingParams(
                max_tokens=out,
                temperature=0.8 if sampled else 0,
                top_p=self._top_p,
                ignore_eos=True,
            )
            self.engine.submit(line.turn, params, prefix=self.persona(line))
        admitted = time.perf_counter() - started
        usages: list[Usage] = []
        stamps: list[float] = []
        while self.engine.has_work:
            for output in self.engine.step():
                assert output.error is None, output.error
                if output.usage is not None:
                    usages.append(output.usage)
            stamps.append(time.perf_counter() - started)
        tokens = sum(usage.completion_tokens for usage in usages)
        assert tokens == len(lines) * out, "a reply is short"
        first = sorted((usage.first_token or 0) - clock for usage in usages)
        return Burst(stamps[-1], admitted, first, stamps, tokens)

    def persona(self, line: Line) -> Prefix:
        scene = self._node(line.scene, None)
        return self._node(line.persona, scene)

    def _node(self, ids: tuple[int, ...], parent: Prefix | None) -> Prefix:
        node = self._open.get(ids)
        if node is None:
            node = self._open[ids] = self.engine.create_prefix(ids, parent)
        return node


class Burst:
    """What one burst took."""

    def __init__(
        self, wall: float, admitted: float, first: list[float], stamps: list[float], tokens: int
    ) -> None:
        self.wall, self.admitted, self.tokens = wall, admitted, tokens
        self.ttft_p50 = first[len(first) // 2]
        self.ttft_p99 = first[min(len(first) - 1, int(len(first) * 0.99))]
        self.steps = len(stamps)
        gaps = [b - a for a, b in itertools.pairwise(stamps)]
        self.step_ms = 1000 * statistics.median(gaps) if gaps else 0.0


class Report:
    """JSON lines on the screen and in a file."""

    def __init__(self, path: Path | None, **always: object) -> None:
        self._path, self._always = path, always

    def add(self, **row: object) -> None:
        short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
        text = json.dumps({**self._always, **short})
        print(text, flush=True)
        if self._path:
            with self._path.open("a") as file:
                file.write(text + "\n")


def bursts(stage: Stage, report: Report, profile: str, seed: int, repetitions: int) -> None:
    """Cold, warm and new lines; each repetition of "cold" has scenes nobody ever saw."""
    out = PROFILES[profile].out
    found: dict[str, list[Burst]] = {"cold": [], "warm": [], "new lines": []}
    for number in range(repetitions + 1):  # the first is a rehearsal
        own = seed + 1000 * number
        runs = {
            "cold": stage.say(build(profile, own), out),
            "warm": stage.say(build(profile, own), out),
            "new lines": stage.say(build(profile, own, 7 + number), out),
        }
        stage.close_scenes()
        if number:
            for kind, burst in runs.items():
                found[kind].append(burst)
    for kind, several in found.items():
        walls = sorted(burst.wall for burst in several)
        middle = statistics.median(walls)
        report.add(
            profile=profile,
            cache=kind,
            wall_s=middle,
            min_s=walls[0],
            max_s=walls[-1],
            out_tok_s=several[0].tokens / middle,
            ttft_p50_ms=1000 * statistics.median(b.ttft_p50 for b in several),
            ttft_p99_ms=1000 * statistics.median(b.ttft_p99 for b in several),
            admit_ms=1000 * statistics.median(b.admitted for b in several),
            step_ms=statistics.median(b.step_ms for b in several),
            steps=several[0].steps,
            runs=repetitions,
        )


def decoding(stage: Stage, report: Report, profile: str, seed: int, repetitions: int) -> None:
    """Steady decoding: time of 129 tokens less time of one, over 128; everything warm."""
    lines = build(profile, seed)
    for batch in (1, 64, 256):
        some = lines[:batch]
        stage.say(some, 1)
        steps = []
        for _ in range(repetitions):
            short, long = stage.say(some, 1).wall, stage.say(some, 129).wall
            steps.append(1000 * (long - short) / 128)
        middle = statistics.median(steps)
        report.add(
            profile=profile,
            decode=batch,
            step_ms=middle,
            min_ms=min(steps),
            max_ms=max(steps),
            tok_s=1000 * batch / middle,
            device_ms=_device_step(stage, some),
            runs=repetitions,
        )
    stage.close_scenes()


def _device_step(stage: Stage, lines: Sequence[Line]) -> float:
    """Milliseconds of the captured step alone, replayed on its own at 64 tokens of output."""
    engine = stage.engine
    params = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    requests = [engine.submit(x.turn, params, prefix=stage.persona(x)) for x in lines]
    spoken = 0
    while spoken < 64 * len(lines):
        spoken += sum(len(output.token_ids) for output in engine.step())
    milliseconds = stage.runner.replay_time(20)
    for request in requests:
        engine.cancel(request)
    while engine.has_work:
        engine.step()
    return milliseconds


def trace(stage: Stage, report: Report, profile: str, seed: int) -> None:
    """Device time by kernel: of a burst with new lines up to its first tokens, and of decoding."""
    stage.say(build(profile, seed), 1)
    for what, number, out in (("reading", 1, 1), ("decoding", 1, 65)):
        lines = build(profile, seed, number)
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as found:
            wall = stage.say(lines, out).wall
        kernels = sorted(found.key_averages(), key=lambda k: -k.device_time_total)
        busy = sum(k.device_time_total for k in kernels) / 1000
        report.add(profile=profile, trace=what, wall_ms=1000 * wall, busy_ms=busy)
        for kernel in kernels[:14]:
            milliseconds = kernel.device_time_total / 1000
            print(f"    {milliseconds:9.2f} ms {kernel.count:6} {kernel.key[:90]}", flush=True)
    stage.close_scenes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama8b")
    parser.add_argument("--profiles", default="gpu,long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--decode", action="store_true", help="decode steps as well")
    parser.add_argument("--trace", action="store_true", help="device time by kernel as well")
    parser.add_argument("--no-bursts", action="store_true")
    parser.add_argument("--eager", action="store_true", help="capture nothing")
    parser.add_argument("--alone", action="store_true", help="no step under way meanwhile")
    parser.add_argument("--top-p", type=float, default=1.0, help="below 1: sampled, not greedy")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    stage = Stage(a.shape, eager=a.eager, alone=a.alone, top_p=a.top_p)
    ways = {"eager": a.eager, "alone": a.alone, "top_p": a.top_p}
    report = Report(a.out, engine="troupe", shape=a.shape, **ways)
    card = torch.cuda.get_device_name()
    report.add(card=card, torch=torch.__version__, start_s=stage.start_s, kv_blocks=stage.blocks)
    gc.freeze()
    for profile in a.profiles.split(","):
        if not a.no_bursts:
            bursts(stage, report, profile, a.seed, a.repetitions)
        if a.decode:
            decoding(stage, report, profile, a.seed, a.repetitions)
        if a.trace:
            trace(stage, report, profile, a.seed)


if __name__ == "__main__":
    main()
