"""Two CPU cores, the default model, the game's workload: Troupe's columns, and rivals beside them.

    python -m benchmarks.cpu --columns fast,bf16 --profiles cpu,odd --seed 0 --repetitions 3
    python -m benchmarks.cpu --llama-server build/bin/llama-server --vllm-python venv/bin/python

`alone`: the first line by itself, nothing cached. `cold`: all at once, nothing cached. `warm`: the
same lines again. `lines`: the same scenes and personas, other lines. `quests`: quest-givers' lines
that arrive while ordinary replies fill every slot; `quests-lively`: while such replies also end
and others begin. Every sample is a line of JSON in `--out`; the tables of the page beside it are
made of them. See rivals/README.md for how to get the rivals.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.progress import Progress

from benchmarks.cpu_report import write_report
from benchmarks.cpu_stage import Setting, take_samples, warm_up
from benchmarks.measuring import Column, commit
from benchmarks.rivals.models import as_folder, as_gguf
from engine.weights.fetch import fetch_model
from engine.weights.load import AnyNumerics, LoadedModel, load_model
from gameserver.bench.workload import PROFILES

#: Columns by name: how the model computes, and `fast` with one thing switched off.
SETTINGS = {
    **{name: Setting(name, quests=name == "fast") for name in get_args(AnyNumerics)},
    "reads-apart": Setting("fast", reads="apart"),
    "own-nodes": Setting("fast", nodes="own"),
    "parking-only": Setting("fast", talks=False, quests=True, reserved_slots=0),
    "no-parking": Setting("fast", talks=False, quests=True, reserved_slots=0, parking=False),
}


class Ours:
    """Takes samples of our columns; keeps one model in memory."""

    def __init__(self, spec: str, data: Path, threads: int | None) -> None:
        self._spec, self._data, self._threads = spec, data, threads
        self._loaded: tuple[AnyNumerics, LoadedModel] | None = None
        self._software = ", ".join(
            (
                f"troupe {commit() or version('troupe-npc')}",
                *(f"{name} {version(name)}" for name in ("torch", "numba")),
            )
        )

    def lines(self, name: str, profile: str, seed: int, repetitions: int) -> Iterator[str]:
        """Samples of a column as lines of JSON."""
        setting = SETTINGS[name]
        model = self._model(setting.numerics)
        warm_up(model, setting, self._threads)
        column = Column(name, profile, seed, self._software)
        for _ in range(repetitions):
            for sample in take_samples(column, setting, model, self._threads):
                yield sample.line()

    def _model(self, numerics: AnyNumerics) -> LoadedModel:
        if self._loaded is None or self._loaded[0] != numerics:
            self._loaded = None  # before the next is read
            model = load_model(
                self._spec, data_dir=self._data, numerics=numerics, threads=self._threads
            )
            self._loaded = numerics, model
        return self._loaded[1]


def rivals(a: argparse.Namespace) -> dict[str, list[str]]:
    """Commands of the rivals that were named; each prints samples as lines of JSON."""
    commands: dict[str, list[str]] = {}
    if a.llama_server:
        source = fetch_model(a.data, None)
        for label, kind, slots in (("Q4_0", "Q4_0", 16), ("Q8_0", "Q8_0", 16), ("Q4_0", "Q4_0", 1)):
            name = f"llama.cpp {label}, {slots} slot{'s' if slots > 1 else ''}"
            gguf = as_gguf(source, kind, a.llama_server, a.data / "rivals")
            commands[name] = [sys.executable, "-m", "benchmarks.rivals.llamacpp"]
            commands[name] += ["--server", str(a.llama_server), "--model", str(gguf)]
            commands[name] += ["--slots", str(slots), "--name", name]
    if a.vllm_python:
        folder = as_folder(fetch_model(a.data, None), a.data / "rivals" / "bf16")
        commands["vLLM CPU, bf16"] = [str(a.vllm_python), "-m", "benchmarks.rivals.vllm_cpu"]
        commands["vLLM CPU, bf16"] += ["--model", str(folder), "--name", "vLLM CPU, bf16"]
    return commands


def rival_lines(command: list[str], profiles: str, seed: int, repetitions: int) -> Iterator[str]:
    """What a rival's script prints that is a sample."""
    sizes = ["--profiles", profiles, "--seed", str(seed), "--repetitions", str(repetitions)]
    with subprocess.Popen([*command, *sizes], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        for line in script.stdout:
            if line.startswith('{"column"'):
                yield line.rstrip()
    if script.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {script.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="default", help="of our columns; rivals have theirs")
    parser.add_argument("--data", type=Path, default=Path(".cache/troupe"))
    parser.add_argument("--columns", default=",".join(SETTINGS))
    parser.add_argument("--profiles", default="cpu,odd")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of our columns; rivals have 2")
    parser.add_argument("--llama-server", type=Path, help="also measure llama.cpp")
    parser.add_argument("--vllm-python", type=Path, help="also measure vLLM for CPU")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu.jsonl"))
    parser.add_argument("--append", action="store_true", help="add to the samples that are there")
    a = parser.parse_args()
    columns = [name.strip() for name in a.columns.split(",") if name.strip()]
    profiles = a.profiles.split(",")
    if unknown := [name for name in columns if name not in SETTINGS]:
        parser.error(f"no column {unknown[0]!r}; there are {', '.join(SETTINGS)}")
    if unknown := [name for name in profiles if name not in PROFILES]:
        parser.error(f"no profile {unknown[0]!r}; there are {', '.join(PROFILES)}")
    ours, others = Ours(a.model, a.data, a.threads), rivals(a)
    if not a.append:
        a.out.unlink(missing_ok=True)
    with Progress(console=Console(stderr=True)) as progress, a.out.open("a") as out:
        bar = progress.add_task("", total=len(profiles) * len(columns) + len(others))
        for profile in profiles:
            for name in columns:
                progress.update(bar, description=f"{profile}: {name}")
                for line in ours.lines(name, profile, a.seed, a.repetitions):
                    print(line, file=out, flush=True)
                progress.advance(bar)
        for name, command in others.items():
            progress.update(bar, description=name)
            for line in rival_lines(command, a.profiles, a.seed, a.repetitions):
                print(line, file=out, flush=True)
            progress.advance(bar)
    if not (a.llama_server and a.vllm_python):
        print("Rivals that were not named were not measured: see benchmarks/rivals/README.md")
    write_report(a.out)


if __name__ == "__main__":
    main()
