"""vLLM for CPU under the game's workload, in process, prefix caching on.

    path/to/vllm/bin/python -m benchmarks.rivals.vllm_cpu --model folder

Prints samples as lines of JSON. Runs in vLLM's own Python, from the repository's root. No HTTP
server lies between, which flatters it a little. Set up as its makers advise and as it measured
fastest: Intel's OpenMP loaded first, one process, both cores bound.
"""

import argparse
import os
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measuring import Column, Figures, burst_figures
from gameserver.bench.workload import PROFILES, build

_OPENMP = Path(sys.prefix) / "lib" / "libiomp5.so"
_SURROUNDINGS = {
    "LD_PRELOAD": str(_OPENMP),
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def burst(engine: Any, prompts: list[list[int]], out: int) -> Figures:
    """All prompts at once."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=out, ignore_eos=True, temperature=0, detokenize=False)
    started, clock = time.monotonic(), time.time()
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    replies = engine.generate(asked, params, use_tqdm=False)
    wall = time.monotonic() - started
    times, cached = [], 0
    for reply in replies:
        found = reply.metrics
        first = found.arrival_time - clock + found.first_token_latency
        times.append((first, first + found.last_token_ts - found.first_token_ts))
        cached += reply.num_cached_tokens or 0
        assert len(reply.outputs[0].token_ids) == out
    computed = sum(map(len, prompts)) - cached
    return {**burst_figures(times, out, wall), "prefill_computed": computed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", default="vLLM CPU, bf16")
    parser.add_argument("--profiles", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=3)
    a = parser.parse_args()
    if os.environ.get("LD_PRELOAD") != str(_OPENMP):  # libraries are loaded at the start only
        command = [sys.executable, "-m", "benchmarks.rivals.vllm_cpu", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **_SURROUNDINGS})
    from vllm import LLM

    engine = LLM(
        a.model,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        enable_prefix_caching=True,
        disable_log_stats=False,
    )
    software = f"vLLM {version('vllm-cpu')} with torch {version('torch')}"
    for profile in a.profiles.split(","):
        measure_all(engine, Column(a.name, profile, a.seed, software), a.repetitions)


def measure_all(engine: Any, column: Column, repetitions: int) -> None:
    """Print every sample of a column."""
    profile, seed = column.profile, column.seed
    out = PROFILES[profile].out
    prompts = [line.prompt for line in build(profile, seed)]
    new = [line.prompt for line in build(profile, seed, turn_seed=seed + 1)]
    # Compiles and warms every shape, shares no beginning with what is measured.
    burst(engine, [line.prompt for line in build(profile, seed + 99)], out)
    for _ in range(repetitions):
        for measure, asked, cold in (
            ("alone", prompts[:1], True),
            ("cold", prompts, True),
            ("warm", prompts, False),
            ("lines", new, False),
        ):
            if cold:
                engine.reset_prefix_cache()
            print(column.sample(measure, partial(burst, engine, asked, out)).line(), flush=True)


if __name__ == "__main__":
    main()
