"""What every engine is judged by, ours and others': figures of a burst, and who else was computing.

Imports nothing of the engine, so that another engine's Python can measure itself by it.
"""

import contextlib
import functools
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import psutil

from engine.percentile import percentile

Figures = dict[str, float]

#: A machine is quiet when others use less than this many cores; waited for so long at most.
QUIET_CORES = 0.1
_PATIENCE_S = 45.0
_LOOK_S = 1.5


@dataclass(frozen=True, slots=True)
class Sample:
    """One measure, taken once.

    Attributes:
        column: the engine and its settings.
        profile, seed: the workload.
        measure: what was asked of it.
        figures: seconds, tokens per second, counts.
        others_cores, stolen_cores: what other processes, and other machines of the host, took.
        when: local time.
        software, machine: versions; processor and cores.
    """

    column: str
    profile: str
    seed: int
    measure: str
    figures: Figures
    others_cores: float
    stolen_cores: float
    when: str
    software: str
    machine: str

    @property
    def disturbance(self) -> float:
        """Cores that were not ours to use."""
        return self.others_cores + self.stolen_cores

    def line(self) -> str:
        """The sample as one line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Column:
    """What stays the same for all samples of an engine under one workload."""

    name: str
    profile: str
    seed: int
    software: str

    def sample(self, measure: str, take: Callable[[], Figures]) -> Sample:
        """Wait until the machine is quiet, then measure."""
        _wait_for_quiet()
        before, started = _spent(), time.monotonic()
        figures = take()
        wall, after = time.monotonic() - started, _spent()
        return self.record(measure, figures, *_others(before, after, wall))

    def record(
        self, measure: str, figures: Figures, others: float = 0.0, stolen: float = 0.0
    ) -> Sample:
        """Figures as a sample; `others` and `stolen` are cores that were not ours."""
        return Sample(
            column=self.name,
            profile=self.profile,
            seed=self.seed,
            measure=measure,
            figures={key: float(f"{value:.5g}") for key, value in figures.items()},
            others_cores=round(others, 3),
            stolen_cores=round(stolen, 3),
            when=f"{datetime.now():%Y-%m-%d %H:%M}",
            software=self.software,
            machine=machine(),
        )


def burst_figures(times: Sequence[tuple[float, float]], out: int, wall: float) -> Figures:
    """Figures of requests that were sent together.

    Args:
        times: seconds from the common start to each request's first token, and to its last.
        out: tokens of each reply.
        wall: seconds until all had ended.
    """
    first = [begun for begun, _ in times]
    return {
        "wall_s": wall,
        "tok_s": len(times) * out / wall,
        "ttft_p50_s": percentile(first, 50),
        "ttft_p99_s": percentile(first, 99),
        "decode_tok_s": statistics.median((out - 1) / (ended - begun) for begun, ended in times),
    }


def commit() -> str:
    """Which version of Troupe this is; "" where there is no repository."""
    command = ["git", "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def process_seconds() -> float:
    """How long ago this process began: what imports take counts, too."""
    return time.time() - psutil.Process().create_time()


@functools.cache
def machine() -> str:
    """The processor's name and the number of cores; the GPU, if there is one."""
    name = "unknown processor"
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return ", ".join([f"{name}, {psutil.cpu_count()} cores", *_gpus()])


def _gpus() -> list[str]:
    """Names and drivers of NVIDIA GPUs. Asked of a tool: torch would take hold of them."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError):
        found = subprocess.run(query, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return [line.replace(", ", ", driver ") for line in found.stdout.splitlines()]
    return []


def read_samples(path: Path) -> list[Sample]:
    """Samples that were written as lines of JSON."""
    return [Sample(**json.loads(line)) for line in path.read_text().splitlines()]


def _wait_for_quiet() -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        before, started = _spent(), time.monotonic()
        time.sleep(_LOOK_S)
        others, _ = _others(before, _spent(), time.monotonic() - started)
        if others < QUIET_CORES:
            return


def _spent() -> tuple[float, float, float]:
    """Processor seconds so far: of everybody, of this process and its children, stolen."""
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system
    if psutil.LINUX:
        busy += times.irq + times.softirq
    own = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent = process.cpu_times()
            own += spent.user + spent.system
    return busy, own, getattr(times, "steal", 0.0)


def _others(
    before: tuple[float, float, float], after: tuple[float, float, float], wall: float
) -> tuple[float, float]:
    """Cores that other processes used between two looks, and cores that were stolen."""
    busy, own, stolen = (late - early for early, late in zip(before, after, strict=True))
    return max(0.0, busy - own) / wall, stolen / wall
