"""vLLM under the game's workload on a GPU: what Troupe is asked, on the same card.

    python -m benchmarks.shapes llama8b folder          # in Troupe's Python: the model's shape
    python -m benchmarks.rivals.vllm_gpu --model folder --parts bursts,decode --out h200.jsonl
    python -m benchmarks.rivals.vllm_gpu --model folder --parts stream --out h200.jsonl
    python -m benchmarks.rivals.vllm_gpu --model folder --parts quests --out h200.jsonl

Runs in vLLM's own Python, from the repository's root. Random weights, greedy, end of sequence
ignored, no tokenizer, prefix caching on; all else as vLLM sets it up by itself. `bursts` and
`decode` go through `LLM`, `stream` through `AsyncLLM`, `quests` through one with 64 slots and
priorities: each in a run of its own, because each starts an engine.
"""

import argparse
import asyncio
import gc
import itertools
import os
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measuring import Column, process_seconds
from benchmarks.rounds import (
    BATCHES,
    CACHES,
    STEPS,
    Recorder,
    Round,
    rounds,
    step_figures,
    throughput,
)
from benchmarks.streams import Reply, arrivals, figures
from gameserver.bench.workload import PROFILES, Line, build

#: Parts by the engine they need.
ENGINES = {"bursts": "offline", "decode": "offline", "stream": "online", "quests": "priority"}
QUEST_SLOTS = 64
#: Set before vLLM is imported, unless they are set already.
_SURROUNDINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line asks of every part."""

    recorder: Recorder
    seed: int
    repetitions: int
    rates: tuple[float, ...]
    until: str

    def rounds(self, profile: str) -> Iterator[Round]:
        """See `benchmarks.rounds.rounds`."""
        return rounds(profile, self.seed, self.repetitions, self.until)


class Offline:
    """`LLM`, the face for scripts."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import LLM

        self._engine = LLM(**settings)
        self.config = self._engine.llm_engine.vllm_config

    def forget(self) -> None:
        """Empty the prefix cache."""
        assert self._engine.reset_prefix_cache()

    def say(self, lines: Sequence[Line], out: int) -> tuple[float, int]:
        """All lines at once; seconds, and prompt tokens that were computed."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": line.prompt} for line in lines]
        started = time.perf_counter()
        replies = self._engine.generate(prompts, params, use_tqdm=False)
        wall = time.perf_counter() - started
        assert all(len(reply.outputs[0].token_ids) == out for reply in replies), "a reply is short"
        cached = sum(reply.num_cached_tokens or 0 for reply in replies)
        return wall, sum(len(line.prompt) for line in lines) - cached


def bursts(engine: Offline, run: Run, profile: str) -> None:
    """All lines at once: nothing seen before, the same again, new lines to the same NPCs."""
    out = PROFILES[profile].out
    for one in run.rounds(profile):
        engine.forget()
        for cache, lines in one.lines.items():
            wall, computed = engine.say(lines, out)
            if one.number:
                found = {**throughput(lines, out, wall), "prefill_computed": computed}
                if cache == "cold":
                    found |= {"distinct": one.distinct, "prefill_ratio": computed / one.distinct}
                run.recorder.add(cache, found, profile)


def decode(engine: Offline, run: Run, profile: str) -> None:
    """Steps of speech at several numbers of replies, everything warm."""
    lines = build(profile, run.seed)
    for batch in BATCHES:
        some = lines[:batch]
        engine.say(some, 1)
        for _ in range(run.repetitions):
            short, long = (engine.say(some, out)[0] for out in (1, 1 + STEPS))
            run.recorder.add(f"decode-{batch}", step_figures(short, long, batch), profile)


class Online:
    """`AsyncLLM`, the face for servers."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings))
        self.config = self.engine.vllm_config
        self._ids = itertools.count()

    async def play(
        self, lines: Sequence[Line], times: Sequence[float], out: int, *, classes: bool
    ) -> list[Reply]:
        """Run one trace; see `benchmarks.streams.play`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=out,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        started = time.perf_counter() + 0.05

        async def reply(line: Line, at: float) -> Reply:
            await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
            heard = Reply(line.quest, at)
            prompt = {"prompt_token_ids": line.prompt}
            priority = 0 if line.quest or not classes else 1
            name = f"{next(self._ids)}"
            async for output in self.engine.generate(prompt, params, name, priority=priority):
                now = time.perf_counter() - started
                heard.tokens += [now] * len(output.outputs[0].token_ids)
            assert len(heard.tokens) == out, "a reply is short"
            return heard

        return await asyncio.gather(*map(reply, lines, times))


async def stream(engine: Online, run: Run, profile: str) -> None:
    """At once (rate 0) and as a Poisson process."""
    out = PROFILES[profile].out
    for rate in run.rates:
        name = f"poisson-{rate:g}" if rate else "at-once"
        for one in run.rounds(profile):
            await engine.engine.reset_prefix_cache()
            for cache, lines in one.lines.items():
                times = arrivals(lines, rate, False, run.seed + one.number)
                heard = await engine.play(lines, times, out, classes=False)
                if one.number:
                    run.recorder.add(f"{name}-{cache}", figures(heard), profile)


async def quests(engine: Online, run: Run, profile: str) -> None:
    """Ordinary replies fill all slots, then quests come: as a class of their own, and equal."""
    out = PROFILES[profile].out
    for name, classes in (("quests", True), ("quests-equal", False)):
        for one in run.rounds(profile):
            await engine.engine.reset_prefix_cache()
            for cache, lines in one.lines.items():
                times = arrivals(lines, 0.0, True, run.seed + one.number)
                heard = await engine.play(lines, times, out, classes=classes)
                if one.number:
                    run.recorder.add(f"{name}-{cache}", figures(heard), profile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a folder with config.json")
    parser.add_argument("--name", default="vLLM", help="of the column")
    parser.add_argument("--parts", default="bursts,decode")
    parser.add_argument("--profiles", default="gpu,long,lonely")
    parser.add_argument("--rates", default="0,100", help="lines a second; 0 is at once")
    parser.add_argument("--until", choices=CACHES, default=CACHES[-1], help="end rounds there")
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, help="samples are appended to it")
    a = parser.parse_args()
    parts, profiles = a.parts.split(","), a.profiles.split(",")
    if unknown := [part for part in parts if part not in ENGINES]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(ENGINES)}")
    if len(engines := {ENGINES[part] for part in parts}) > 1:
        parser.error(f"{a.parts} need {len(engines)} engines: name them in runs of their own")
    for name, value in _SURROUNDINGS.items():
        os.environ.setdefault(name, value)
    if find_spec("flashinfer") is None:  # it would be imported all the same
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    settings = {
        "model": a.model,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "seed": 0,
        "max_model_len": 8192,
        "max_num_seqs": 256,
        "max_num_batched_tokens": a.max_num_batched_tokens,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": True,
    }
    software = f"vLLM {version('vllm')} with torch {version('torch')}"
    recorder = Recorder(a.out, Column(a.name, profiles[0], a.seed, software))
    rates = tuple(float(rate) for rate in a.rates.split(","))
    run = Run(recorder, a.seed, a.repetitions, rates, a.until)
    (kind,) = engines
    if kind == "offline":
        measure_offline(settings, parts, profiles, run)
        return
    if kind == "priority":
        settings |= {"max_num_seqs": QUEST_SLOTS, "scheduling_policy": "priority"}
    run_on_fastest_loop(measure_online(settings, kind, profiles, run))


def measure_offline(
    settings: dict[str, Any], parts: Sequence[str], profiles: Sequence[str], run: Run
) -> None:
    """Parts that go through `LLM`."""
    started = time.perf_counter()
    engine = Offline(settings)
    note_start(run, engine, started)
    engine.say(build("tiny"), 8)
    for part, profile in itertools.product(parts, profiles):
        with run.recorder.part(f"{part}, {profile}"):
            (bursts if part == "bursts" else decode)(engine, run, profile)


async def measure_online(
    settings: dict[str, Any], kind: str, profiles: Sequence[str], run: Run
) -> None:
    """Parts that go through `AsyncLLM`."""
    started = time.perf_counter()
    engine = Online(settings)
    if kind == "online":  # the other has fewer slots
        note_start(run, engine, started)
    gc.collect()
    gc.freeze()  # as vLLM's own server does: no collector's pause in what measures it
    gc.disable()
    lines = build("tiny")
    await engine.play(lines, [0.0] * len(lines), 8, classes=False)
    for profile in profiles:
        with run.recorder.part(f"{kind}, {profile}"):
            await (quests if kind == "priority" else stream)(engine, run, profile)
    engine.engine.shutdown()


def note_start(run: Run, engine: Offline | Online, started: float) -> None:
    """How long the engine took to start, and its room."""
    cache, now = engine.config.cache_config, time.perf_counter()
    found = {
        "start_s": now - started,
        "process_s": process_seconds(),
        "kv_tokens": cache.num_gpu_blocks * cache.block_size,
    }
    run.recorder.add("start", found, "")


def run_on_fastest_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run it on uvloop, as vLLM's server does, where that is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


if __name__ == "__main__":
    main()
