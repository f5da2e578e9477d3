"""The engine on one GPU with random weights, under the game's workload.

    python -m benchmarks.gpu --parts bursts,decode --profiles gpu,long,lonely --out h200.jsonl
    python -m benchmarks.gpu --parts stream --rates 0,100 --profiles gpu --out h200.jsonl
    python -m benchmarks.gpu --parts quests,full,host,lag --profiles gpu --out h200.jsonl
    python -m benchmarks.gpu --parts bursts,decode --off tree --profiles gpu --out h200.jsonl
    python -m benchmarks.gpu_report h200.jsonl                # the tables of the page beside it

`bursts`: all lines at once, cold, warm, and new lines to the same NPCs. `decode`: steps of speech.
`stream`: lines that arrive over time, first tokens and gaps. `quests`: quest-givers' lines to a
house of 64 slots that are all taken. `full`: the KV pool when more lines come than it holds.
`host`: what Python does in a step. `lag`: the event loop beside a busy engine. `trace`: device time
by kernel.

Greedy, end of sequence ignored, token ids only, scenes and personas by handle, as the game server
does it. Every sample is a line of JSON, printed and appended to --out as soon as it was taken, so a
run may be cut anywhere and go on with the other parts. Parts that need engines of different
settings run in processes of their own.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from benchmarks import gpu_parts
from benchmarks.gpu_parts import Run, small_pool
from benchmarks.gpu_stage import DRAWING, SWITCHES, Setting, Stage, switched_off
from benchmarks.measuring import Column, commit
from benchmarks.rounds import CACHES, Recorder
from benchmarks.shapes import SHAPES
from gameserver.bench.workload import PROFILES

QUEST_SLOTS = 64
#: A burst is about throughput; those who listen to a stream of arrivals want even steps, as the
#: product has them on a GPU (`engine.pace`).
BURST: Mapping[str, object] = {"step_target_ms": 400.0, "min_prefill_tokens": 32}
STREAM: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a run.

    Attributes:
        take: measures it, on an engine with these settings.
        config: settings of that engine; parts of equal ones share it.
        profile: the only workload it is about, if there is one.
    """

    take: Callable[[Stage, Run], None]
    config: Mapping[str, object] = field(default_factory=lambda: BURST)
    profile: str | None = None


PARTS = {
    "bursts": Part(gpu_parts.bursts),
    "decode": Part(gpu_parts.decode),
    "trace": Part(gpu_parts.trace),
    "host": Part(gpu_parts.host),  # the last of its engine: it is watched from then on
    "stream": Part(gpu_parts.stream, STREAM),
    "quests": Part(gpu_parts.quests, {**STREAM, "max_num_seqs": QUEST_SLOTS}),
    "full": Part(gpu_parts.full, profile="uneven"),
    "lag": Part(gpu_parts.lag),
}
#: These make engines of their own.
ALONE = ("full", "lag")


def groups(parts: Sequence[str]) -> list[list[str]]:
    """Parts by the engine they need, in the order of `PARTS`."""
    found: dict[str, list[str]] = {}
    for name in PARTS:
        if name in parts:
            key = name if name in ALONE else json.dumps(dict(PARTS[name].config))
            found.setdefault(key, []).append(name)
    return list(found.values())


def take(parts: Sequence[str], run: Run) -> None:
    """Take all samples of parts that need the same engine."""
    first = PARTS[parts[0]]
    setting = replace(run.setting, config={**first.config, **run.setting.config})
    if first.profile is not None:
        run = replace(run, profiles=(first.profile,))
    if parts == ["full"]:
        setting = small_pool(setting, run.profiles[0])
    run = replace(run, setting=setting)
    if parts == ["lag"]:
        gpu_parts.lag(run)
        return
    with switched_off(setting):
        stage = Stage(setting)
        if parts != ["full"]:  # that one starts with a pool like no other
            run.recorder.add("start", stage.started, "")
        gc.freeze()
        for name in parts:
            PARTS[name].take(stage, run)


def software(commit: str, settings: Mapping[str, object]) -> str:
    """Versions, and settings of the engine that were given by hand."""
    versions = [f"troupe {commit}", *(f"{name} {version(name)}" for name in ("torch", "triton"))]
    return ", ".join([*versions, *(f"{name}={value}" for name, value in settings.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Verbatim)
    parser.add_argument("--parts", default="bursts,decode", help=", ".join(PARTS))
    parser.add_argument("--profiles", default="gpu,long,lonely", help=", ".join(PROFILES))
    parser.add_argument("--shape", choices=SHAPES, default="llama8b")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rates", default="0,100", help="of stream: lines a second; 0 is at once")
    parser.add_argument("--until", choices=CACHES, default=CACHES[-1], help="end rounds there")
    parser.add_argument("--off", default="", help=f"switch off: {', '.join(SWITCHES)}")
    parser.add_argument("--quantization", help="of the weights, as the engine's setting")
    parser.add_argument("--drawing", choices=DRAWING, default="greedy", help="how tokens are drawn")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of the engine")
    parser.add_argument("--commit", default=commit(), help="of Troupe, if this is no checkout")
    parser.add_argument("--out", type=Path, help="samples are appended to it")
    a = parser.parse_args()
    parts, profiles = a.parts.split(","), tuple(a.profiles.split(","))
    off = frozenset(name for name in a.off.split(",") if name)
    for kind, names, known in (
        ("part", parts, PARTS),
        ("profile", profiles, PROFILES),
        ("switch", off, SWITCHES),
    ):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"no {kind} {unknown[0]!r}; there are {', '.join(known)}")
    several = groups(parts)
    if len(several) > 1:
        failed = [name for group in several if _in_its_own_process(group) for name in group]
        sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
    given = {name: json.loads(value) for name, value in (item.split("=", 1) for item in a.set)}
    if a.quantization is not None:
        given["quantization"] = a.quantization
    setting = Setting(a.shape, off, a.drawing, given)
    recorder = Recorder(
        a.out, Column(setting.column, profiles[0], a.seed, software(a.commit, given))
    )
    rates = tuple(float(rate) for rate in a.rates.split(","))
    take(several[0], Run(setting, recorder, profiles, a.seed, a.repetitions, rates, a.until))


def _in_its_own_process(group: Sequence[str]) -> int:
    """Run this very command line for some parts, so that what one engine held is free for the next;
    returns its exit status.
    """
    started = time.monotonic()
    arguments = [*sys.argv[1:], "--parts", ",".join(group)]  # the last one counts
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu", *arguments], check=False)
    spent = time.monotonic() - started
    print(f"{', '.join(group)}, all: {spent:.1f} s", file=sys.stderr, flush=True)
    return done.returncode


class _Verbatim(argparse.RawDescriptionHelpFormatter):
    """Leaves the lines of the description as they are."""


if __name__ == "__main__":
    main()
