"""What is measured of our engine on a GPU; each part writes its samples down.

The rounds and figures of `bursts`, `decode`, `stream` and `quests` are those of
`benchmarks.rivals.vllm_gpu`.
"""

import asyncio
import gc
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import profiler

from benchmarks.gpu_stage import Setting, Stage, dtype, random_model
from benchmarks.measuring import Figures
from benchmarks.rounds import BATCHES, CACHES, STEPS, Recorder, Round, rounds, step_figures
from benchmarks.shapes import SHAPES
from benchmarks.streams import arrivals, figures, play
from engine.api import AsyncEngine
from engine.params import SamplingParams
from engine.profile import Profile
from gameserver.bench.workload import PROFILES, Line, build
from gameserver.loop_lag import LoopLag

#: Of the pool that `full` needs for all lines of a workload it gets this share.
POOL_SHARE = 0.6
#: Seconds between two looks at the event loop's clock.
_LAG_PERIOD_S = 0.002
#: Parts of a step that are the host's; it waits for the device in the rest.
HOST_PARTS = ("take in", "plan", "launch", "deliver")


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line asks of every part."""

    setting: Setting
    recorder: Recorder
    profiles: tuple[str, ...]
    seed: int
    repetitions: int
    rates: tuple[float, ...] = (0.0,)
    until: str = CACHES[-1]

    def rounds(self, profile: str) -> Iterator[Round]:
        """See `benchmarks.rounds.rounds`."""
        return rounds(profile, self.seed, self.repetitions, self.until)


class WallClock:
    """Time as it passes."""

    def __call__(self) -> float:
        return time.perf_counter()

    def rest(self, until: float) -> None:
        """See `benchmarks.streams.Clock`."""
        time.sleep(0.0005)


def bursts(stage: Stage, run: Run) -> None:
    """All lines at once: nothing seen before, the same again, new lines to the same NPCs."""
    for profile in run.profiles:
        with run.recorder.part(f"bursts, {profile}"):
            for one in run.rounds(profile):
                for cache, lines in one.lines.items():
                    found = stage.say(lines, PROFILES[profile].out)
                    if cache == "cold":
                        found["distinct"] = one.distinct
                        found["prefill_ratio"] = found["prefill_computed"] / one.distinct
                    if one.number:
                        run.recorder.add(cache, found, profile)
                stage.close_scenes()


def decode(stage: Stage, run: Run) -> None:
    """Steps of speech at several numbers of replies, everything warm.

    `device_ms` is that of the captured step alone, replayed without the host.
    """
    for profile in run.profiles:
        lines = build(profile, run.seed)
        with run.recorder.part(f"decode, {profile}"):
            for batch in BATCHES:
                some = lines[:batch]
                stage.say(some, 1)
                for _ in range(run.repetitions):
                    short, long = (stage.say(some, out)["wall_s"] for out in (1, 1 + STEPS))
                    found = step_figures(short, long, len(some))
                    run.recorder.add(f"decode-{batch}", found | _device_step(stage, some), profile)
        stage.close_scenes()


def _device_step(stage: Stage, lines: Sequence[Line]) -> Figures:
    """The captured step in the middle of these replies; nothing if none is captured."""
    if "graphs" in stage.setting.off or not torch.cuda.is_available():
        return {}
    with speaking(stage, lines, STEPS // 2):
        return {"device_ms": stage.runner.replay_time(20)}  # type: ignore[attr-defined]


@contextmanager
def speaking(stage: Stage, lines: Sequence[Line], tokens: int) -> Iterator[None]:
    """Replies to all lines that have said `tokens` tokens each and go on; ended afterwards."""
    engine, spoken = stage.engine, 0
    stage.say(lines, 1)
    requests = [stage.submit(line, tokens + 2 * STEPS) for line in lines]
    while spoken < tokens * len(lines):
        spoken += sum(len(output.token_ids) for output in engine.step())
    yield
    for request in requests:
        engine.cancel(request)
    while engine.has_work:
        engine.step()


def stream(stage: Stage, run: Run) -> None:
    """At once (rate 0) and as a Poisson process; all lines are equal."""
    for profile, rate in itertools.product(run.profiles, run.rates):
        name = f"poisson-{rate:g}" if rate else "at-once"
        with run.recorder.part(f"{name}, {profile}"):
            for one in run.rounds(profile):
                for cache, lines in one.lines.items():
                    times = arrivals(lines, rate, False, run.seed + one.number)
                    found = _played(stage, profile, lines, times, classes=False)
                    if one.number:
                        run.recorder.add(f"{name}-{cache}", found, profile)
                stage.close_scenes()


def quests(stage: Stage, run: Run) -> None:
    """Ordinary replies fill all slots, then quests come: as a class of their own, and equal."""
    for profile, (name, classes) in itertools.product(
        run.profiles, (("quests", True), ("quests-equal", False))
    ):
        with run.recorder.part(f"{name}, {profile}"):
            for one in run.rounds(profile):
                for cache, lines in one.lines.items():
                    times = arrivals(lines, 0.0, True, run.seed + one.number)
                    found = _played(stage, profile, lines, times, classes=classes)
                    if one.number:
                        run.recorder.add(f"{name}-{cache}", found, profile)
                stage.close_scenes()


def _played(
    stage: Stage, profile: str, lines: Sequence[Line], times: Sequence[float], *, classes: bool
) -> Figures:
    gc.collect()
    out, clock = PROFILES[profile].out, WallClock()
    return figures(play(stage.engine, stage.persona, lines, times, out, clock, classes=classes))


def full(stage: Stage, run: Run) -> None:
    """More lines than the pool holds, until all have been answered.

    It is full while a line waits for which there would be a slot, and its blocks are not there.
    """
    (profile,) = run.profiles
    size, per_block = PROFILES[profile], stage.config.block_size
    largest = sum(-(-n // per_block) for n in (size.scene, size.persona, size.turn + size.out))
    with run.recorder.part(f"full, {profile}"):
        for number in range(run.repetitions):
            for extra in range(2):
                for line in build(profile, run.seed + 1000 * number + extra):
                    stage.submit(line, size.out)
            seen: list[dict[str, float]] = []
            engine, gauges, began = stage.engine, stage.engine.gauges, False
            while engine.has_work:
                engine.step()
                if engine.gauges is gauges or not engine.gauges["waiting"]:
                    continue
                gauges = engine.gauges
                began |= gauges["blocks_free"] + gauges["blocks_cached"] < largest
                if began and gauges["running"] < stage.config.max_num_seqs:
                    seen.append(gauges)
            assert seen, "the pool was never full: it is too large for this workload"
            run.recorder.add("full", _fullness(seen), profile)
            stage.close_scenes()


def _fullness(seen: Sequence[dict[str, float]]) -> Figures:
    return {
        "kv_use": statistics.median(gauges["kv_use"] for gauges in seen),
        "kv_use_least": min(gauges["kv_use"] for gauges in seen),
        "fragmentation": statistics.median(gauges["fragmentation"] for gauges in seen),
        "fragmentation_most": max(gauges["fragmentation"] for gauges in seen),
        "running": statistics.median(gauges["running"] for gauges in seen),
        "blocks": seen[0]["blocks_total"],
    }


def small_pool(setting: Setting, profile: str) -> Setting:
    """The setting with a pool that holds `POOL_SHARE` of what a workload's lines need."""
    size, shape = PROFILES[profile], SHAPES[setting.shape]
    block = setting.engine_config().block_size
    own = -(-(size.turn + size.out) // block)
    nodes = -(-size.scene // block) + size.npcs * -(-size.persona // block)
    blocks = size.scenes * (nodes + size.npcs * size.players * own)
    block_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype().itemsize * block
    pool = {"kv_cache_bytes": int(POOL_SHARE * blocks) * block_bytes}
    return replace(setting, config={**setting.config, **pool})


def host(stage: Stage, run: Run) -> None:
    """What the host does in a step while all lines' replies are under way, by part."""
    seen = Profile()
    stage.engine.attach(seen)
    for profile in run.profiles:
        lines = build(profile, run.seed)
        with run.recorder.part(f"host, {profile}"):
            for batch in BATCHES:
                for _ in range(run.repetitions):
                    with speaking(stage, lines[:batch], 8):
                        found = _host_step(stage, seen)
                    run.recorder.add(f"host-{batch}", found, profile)
        stage.close_scenes()


def _host_step(stage: Stage, seen: Profile) -> Figures:
    def spent() -> dict[str, float]:
        return {name: seen.seconds("step", name) for name in (*HOST_PARTS, "wait")}

    before, started = spent(), time.perf_counter()
    for _ in range(STEPS // 2):
        stage.engine.step()
    wall, after = time.perf_counter() - started, spent()
    found = {name: 1000 * (after[name] - before[name]) / (STEPS // 2) for name in after}
    step = 1000 * wall / (STEPS // 2)
    parts = {f"{name.replace(' ', '_')}_ms": found[name] for name in HOST_PARTS}
    return {"step_ms": step, "host_ms": step - found["wait"], **parts}


def lag(run: Run) -> None:
    """How late the event loop's timers are while an engine beside it answers all lines."""
    model, config = random_model(run.setting), run.setting.engine_config()
    for profile in run.profiles:
        engine = AsyncEngine(model, config)
        with run.recorder.part(f"lag, {profile}"):
            for found in asyncio.run(_lags(engine, run, profile)):
                run.recorder.add("lag", found, profile)


async def _lags(engine: AsyncEngine, run: Run, profile: str) -> list[Figures]:
    await engine.start()
    found = []
    params = SamplingParams(max_tokens=2 * STEPS, temperature=0, ignore_eos=True)
    for one in run.rounds(profile):
        lag = LoopLag(_LAG_PERIOD_S)
        lag.start()
        started = time.perf_counter()
        arrived = await asyncio.gather(*(_heard(engine, x, params) for x in one.lines["cold"]))
        wall = time.perf_counter() - started
        lag.stop()
        gauges = {name.removeprefix("loop_"): value for name, value in lag.gauges().items()}
        if one.number:
            found.append({**gauges, "tok_s": sum(arrived) / wall})
    await engine.stop()
    return found


async def _heard(engine: AsyncEngine, line: Line, params: SamplingParams) -> int:
    scene = engine.create_prefix(line.scene)
    persona = engine.create_prefix(line.persona, scene)
    tokens = 0
    async for output in engine.stream(line.turn, params, prefix=persona):
        tokens += len(output.token_ids)
    engine.release_prefix(persona)
    engine.release_prefix(scene)
    return tokens


def trace(stage: Stage, run: Run) -> None:
    """Device time by kernel: of new lines up to their first tokens, and of speech."""
    for profile in run.profiles:
        stage.say(build(profile, run.seed), 1)
        for what, out in (("reading", 1), ("decoding", 65)):
            lines = build(profile, run.seed, out)
            with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as found:
                wall = stage.say(lines, out)["wall_s"]
            kernels = sorted(found.key_averages(), key=lambda kernel: -kernel.device_time_total)
            busy = sum(kernel.device_time_total for kernel in kernels) / 1000
            times = {"wall_ms": 1000 * wall, "busy_ms": busy}
            run.recorder.add(f"trace-{what}", times, profile)
            for kernel in kernels[:16]:
                milliseconds = kernel.device_time_total / 1000
                print(f"    {milliseconds:9.2f} ms {kernel.count:6} {kernel.key[:90]}", flush=True)
        stage.close_scenes()
