"""What a node bears, part by part; results go to benchmarks/results/load.md.

    python -m benchmarks.load --parts idle,talk
    python -m benchmarks.load --small            every part in miniature, results nowhere

A part that is not run keeps its last result, so a run may be gone on with part by part.
"""

import argparse
import asyncio
import contextlib
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.load import cut, fuzz, idle, jam, model, report, slow, storm, talk
from benchmarks.load.part import Result, Say, Stage
from gameserver.http.patience import open_many_files

RESULTS = Path(__file__).parents[1] / "results"
#: Each process of guests opens half of the idle sessions; the node all of them.
FILES = 12_000
#: A part that takes longer than this has failed.
MOST_S = 600.0

Run = Callable[[Stage], Awaitable[Result]]


def parts(small: bool, sessions: int, frames: int, seed: int, models: Path) -> dict[str, Run]:
    """The parts by name, at full size or in miniature."""
    if small:
        return {
            "idle": lambda stage: idle.run(stage, 300, 5.0),
            "talk": lambda stage: talk.run(stage, [50, 100], 3.0),
            "model": lambda stage: model.run(stage, 4, 20.0, models),
            "slow": lambda stage: slow.run(stage, 50, 5, 1, 4.0),
            "storm": lambda stage: storm.run(stage, 100, 60.0),
            "jam": lambda stage: jam.run(stage, 3.0, 0.1),
            "fuzz": lambda stage: fuzz.run(stage, 5_000, seed, 60.0),
            "cut": lambda stage: cut.run(stage, 3),
        }
    return {
        "idle": lambda stage: idle.run(stage, sessions, 60.0),
        "talk": lambda stage: talk.run(stage, [250, 500, 1000, 1500, 2000], 8.0),
        "model": lambda stage: model.run(stage, 64, 120.0, models),
        "slow": lambda stage: slow.run(stage, 100, 20, 3, 8.0),
        "storm": lambda stage: storm.run(stage, 2000, 90.0),
        "jam": lambda stage: jam.run(stage, 15.0, 1.0),
        "fuzz": lambda stage: fuzz.run(stage, frames, seed, MOST_S),
        "cut": lambda stage: cut.run(stage, 200),
    }


async def perform(name: str, run: Run, say: Say) -> Result:
    """Run one part from its first process to its last."""
    began = time.monotonic()
    async with asyncio.timeout(MOST_S), Stage(say) as stage:
        result = await run(stage)
        result.others = stage.others()
    result.seconds = time.monotonic() - began
    result.when = datetime.now().strftime("%Y-%m-%d %H:%M")
    return result


def enough_files(wanted: int) -> None:
    """Take all open files that the system grants; end with what to do if they are too few."""
    open_many_files()
    granted = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if granted < wanted:
        sys.exit(
            f"{wanted:,} open files are needed and {granted:,} are granted: raise the hard limit "
            f"(ulimit -Hn {wanted}, or nofile in /etc/security/limits.conf), or take fewer "
            f"--sessions"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="idle,talk,model,slow,storm,jam,fuzz,cut")
    parser.add_argument("--small", action="store_true", help="in miniature: does it run at all?")
    parser.add_argument("--sessions", type=int, default=10_000, help="of the part idle")
    parser.add_argument("--frames", type=int, default=1_000_000, help="of the part fuzz")
    parser.add_argument("--seed", type=int, default=1, help="of the part fuzz")
    parser.add_argument("--models", type=Path, default=Path(".cache/troupe"), help="of `model`")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    a = parser.parse_args()
    known = parts(a.small, a.sessions, a.frames, a.seed, a.models)
    chosen = a.parts.split(",")
    if unknown := set(chosen) - set(known):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if "idle" in chosen and not a.small:
        enough_files(max(FILES, a.sessions + 2000))
    console, missed = Console(stderr=True), False
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console) as bars:
        for name in chosen:
            task = bars.add_task(name)

            def say(text: str, name: str = name, task: object = task) -> None:
                bars.update(task, description=f"{name}: {text}")  # type: ignore[arg-type]

            result = asyncio.run(perform(name, known[name], say))
            bars.update(task, total=1, completed=1, description=f"{name}: done")
            for promise in result.promises:
                verdict = "kept" if promise.kept else "MISSED"
                unit = f"{promise.unit}".strip()
                line = f"{name}: {promise.label}: {promise.value:.3g} {unit}"
                bars.console.print(f"{line} (bound {promise.bound:g}): {verdict}")
                missed |= not promise.kept
            if a.small:
                bars.console.print(result.rows, *result.notes)
                continue
            report.keep(a.out / "load.jsonl", result)
            report.write(report.read(a.out / "load.jsonl"), a.out / "load.md")
    sys.exit(missed and not a.small)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # processes are ended either way
    with contextlib.suppress(KeyboardInterrupt):
        main()
