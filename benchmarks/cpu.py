"""The game's workload on a CPU with the default model; one JSON line a measure.

    python -m benchmarks.cpu --numerics fast --profile cpu --seed 0 --repetitions 3

`alone`: the first line by itself, nothing cached. `cold`: all at once, nothing cached. `warm`: the
same lines again. `lines`: the same scenes and personas, other lines. `quests`: quest-givers' lines
that arrive while ordinary replies fill every slot.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from engine.build import build_engine
from engine.config import EngineConfig
from engine.loop import Engine
from engine.outputs import Usage
from engine.params import SamplingParams
from engine.prefixes import Prefix
from engine.weights.load import LoadedModel, load_model
from gameserver.bench.workload import PROFILES, Line, build


class Stage:
    """A fresh engine on a loaded model, and handles of scenes and personas."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self.engine: Engine = build_engine(model, config)
        self._open: dict[tuple[int, tuple[int, ...]], Prefix] = {}

    def submit(self, line: Line, out: int, priority: int = 1) -> int:
        """Queue a line; returns the request's id."""
        persona = self._node(line.persona, self._node(line.scene, None))
        params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=True)
        return self.engine.submit(line.turn, params, prefix=persona, priority=priority).id

    def finish(self) -> dict[int, Usage]:
        """Step until nothing is left; what each request took."""
        usages: dict[int, Usage] = {}
        while self.engine.has_work:
            for output in self.engine.step():
                assert output.error is None, output.error
                if output.usage is not None:
                    usages[output.request_id] = output.usage
        return usages

    def _node(self, ids: tuple[int, ...], parent: Prefix | None) -> Prefix:
        key = (parent.id if parent else -1, ids)
        if key not in self._open:
            self._open[key] = self.engine.create_prefix(ids, parent)
        return self._open[key]


def burst(stage: Stage, lines: Sequence[Line], out: int) -> dict[str, float]:
    """All lines at once: wall time, tokens per second, first tokens, what had to be computed."""
    before = stage.engine.gauges["prefill_tokens_computed"]
    started = time.monotonic()
    for line in lines:
        stage.submit(line, out)
    usages = list(stage.finish().values())
    wall = time.monotonic() - started
    first = sorted((usage.first_token or 0) - started for usage in usages)
    rates = [(out - 1) / (u.finished - (u.first_token or 0)) for u in usages]
    return {
        "wall_s": wall,
        "tok_s": len(lines) * out / wall,
        "ttft_p50_s": first[len(first) // 2],
        "ttft_max_s": first[-1],
        "decode_tok_s": statistics.median(rates),
        "prefill_computed": stage.engine.gauges["prefill_tokens_computed"] - before,
    }


def quests(stage: Stage, lines: Sequence[Line], out: int, slots: int) -> dict[str, float]:
    """First tokens of quest-givers: idle, and with all slots taken by endless ordinary replies."""
    quest = [line for line in lines if line.quest]
    ordinary = [line for line in lines if not line.quest]

    def ttft(line: Line, number: int) -> float:
        fresh = replace(line, turn=(*line.turn[:-1], 100 + number))
        wanted = stage.submit(fresh, 4, priority=0)
        while True:
            for output in stage.engine.step():
                if output.request_id == wanted and output.usage is not None:
                    return (output.usage.first_token or 0) - output.usage.arrived

    idle = [ttft(quest[n % len(quest)], n) for n in range(8)]
    for n in range(2 * slots):
        stage.submit(ordinary[n % len(ordinary)], out)
    for _ in range(40):
        stage.engine.step()
    busy = [ttft(quest[n % len(quest)], 50 + n) for n in range(12)]
    stage.finish()
    return {
        "idle_p50_s": statistics.median(idle),
        "busy_p50_s": statistics.median(busy),
        "busy_max_s": max(busy),
        "ratio": max(busy) / statistics.median(idle),
    }


def once(
    model: LoadedModel, config: EngineConfig, profile: str, seed: int
) -> dict[str, dict[str, float]]:
    """Every measure once."""
    lines, out = build(profile, seed), PROFILES[profile].out
    alone = burst(Stage(model, config), lines[:1], out)
    stage = Stage(model, config)
    return {
        "alone": alone,
        "cold": burst(stage, lines, out),
        "warm": burst(stage, lines, out),
        "lines": burst(stage, build(profile, seed, turn_seed=seed + 1), out),
        "quests": quests(stage, lines, 200, config.max_num_seqs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, default=Path(".cache/troupe"))
    parser.add_argument("--numerics", choices=("exact", "bf16", "fast"), default="fast")
    parser.add_argument("--profile", choices=PROFILES, default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int)
    a = parser.parse_args()
    config = EngineConfig(
        numerics=a.numerics, threads=a.threads, device="cpu", reserved_slots=0, max_num_seqs=16
    )
    model = load_model(a.model, data_dir=a.data, numerics=a.numerics, threads=a.threads)
    once(model, config, "tiny", 99)  # first calls allocate
    runs, shares = [], []
    for _ in range(a.repetitions):
        process = psutil.Process()
        psutil.cpu_percent()
        own, started = process.cpu_times(), time.monotonic()
        runs.append(once(model, config, a.profile, a.seed))
        used = process.cpu_times()
        mine = used.user + used.system - own.user - own.system
        cores = psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1)
        shares.append(cores - mine / (time.monotonic() - started))
    for measure in runs[0]:
        row = {
            key: float(f"{statistics.median(run[measure][key] for run in runs):.4g}")
            for key in runs[0][measure]
        }
        print(
            json.dumps(
                {
                    "measure": measure,
                    "numerics": a.numerics,
                    "profile": a.profile,
                    "seed": a.seed,
                    "runs": len(runs),
                    "others_cores": round(max(shares), 2),
                    **row,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
