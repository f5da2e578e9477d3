"""The engine's own time in a step of 256 replies, without a device: what Python costs.

    python -m benchmarks.host                 # token ids only
    python -m benchmarks.host --text          # with a real vocabulary, and with what NPCs ask for
    python -m benchmarks.host --profile-of steady   # by function

The engine is the real one, with a step under way; in place of the device something that costs
nothing and says random tokens. Engines by how they launch:

* `nothing`: launching is free, so what is left is the engine's own;
* `tables`: the device's runner with its tables, in host memory and without a device behind them.

Microseconds a step; the smallest and the median of all steps of a kind, the mean by part.
"""

import argparse
import cProfile
import gc
import json
import pstats
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import SHAPES, NoText
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.device.launched import Pending
from engine.device.runner import DeviceRunner
from engine.kv.cache import KVCache
from engine.overlap import OverlapEngine
from engine.params import SamplingParams
from engine.plan import StepPlan
from engine.prefixes import Prefix
from engine.profile import Profile
from engine.request import Request
from engine.weights.load import load_vocabulary
from gameserver.bench.workload import PROFILES, Line, build

REPLIES, BLOCK, LONGEST = 256, 16, 2048
SHAPE = SHAPES["qwen05b"]
#: Replies that end, and that begin, in a step of the kinds that are named so.
CHURN = 16
PARTS = ("take in", "plan", "launch", "wait", "deliver", "book")


class Free:
    """A launcher whose device is infinitely fast."""

    def __init__(self) -> None:
        chance = random.Random(1)
        rows = [chance.choices(range(100, 32000), k=2 * REPLIES) for _ in range(16)]
        self._tokens = torch.tensor(rows, dtype=torch.int32)
        self._turn = 0

    def run(self, plan: StepPlan) -> Any:
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> Pending:
        self._turn = (self._turn + 1) % len(self._tokens)
        return Pending(self._tokens[self._turn, : plan.samples], None)

    def needs_host(self, request: Request) -> bool:
        return False


class _Nothing:
    """A decoder, or a captured step, that computes nothing."""

    device, kv_dtype, config = torch.device("cpu"), torch.float32, SHAPE
    graph: Any
    logits = torch.zeros(1, 1)

    def __init__(self) -> None:
        self.graph = self

    def forward(self, *ignored: Any) -> torch.Tensor:
        return self.logits

    def replay(self) -> None:
        pass


class Tables(DeviceRunner):
    """The device's runner up to the point where the device would begin."""

    def __init__(self, blocks: int) -> None:
        cache = KVCache(1, 1, 1, blocks + 1, BLOCK, torch.float32, torch.device("cpu"))
        super().__init__(_Nothing(), cache, REPLIES, LONGEST)  # type: ignore[arg-type]
        self._eager = False
        chance = random.Random(1)
        self._drawn[:] = torch.tensor(chance.choices(range(100, 32000), k=REPLIES))

    def _graph(self, size: Any) -> Any:
        return _Nothing()

    def _sample(self, *ignored: Any) -> None:
        pass


class Stage:
    """An engine without a device, and the handles of its scenes."""

    def __init__(self, launch: str, tokenizer: Any) -> None:
        config = EngineConfig(
            max_num_seqs=REPLIES,
            reserved_slots=0,
            max_num_batched_tokens=8192,
            step_target_ms=400.0,
            max_waiting=4096,
            block_size=BLOCK,
        )
        blocks = 40_000
        runner = Free() if launch == "nothing" else Tables(blocks)
        pool = BlockPool(blocks, BLOCK)
        self.engine = OverlapEngine(runner, tokenizer, pool, LONGEST, config)
        self.profile = Profile()
        self.engine.attach(self.profile)
        self.spent: list[float] = []
        self._text = not isinstance(tokenizer, NoText)
        self._open: dict[tuple[int, ...], Prefix] = {}

    def submit(self, line: Line, tokens: int) -> None:
        """One line; with text it ends as an NPC's does, but not before its length."""
        more: dict[str, Any] = {}
        if self._text:
            more = {"stop": ("\nAda:", "\nMira:", "\nOld Tom:"), "sentence_after": tokens}
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, **more)
        self.engine.submit(line.turn, params, prefix=self._persona(line))

    def step(self) -> None:
        begun = time.perf_counter()
        self.engine.step()
        self.spent.append(time.perf_counter() - begun)

    def finish(self) -> None:
        """Step until nobody speaks."""
        while self.engine.has_work:
            self.step()

    def close(self) -> None:
        """Give the scenes back."""
        for node in reversed(self._open.values()):
            self.engine.release_prefix(node)
        self._open.clear()
        self.finish()

    def _persona(self, line: Line) -> Prefix:
        return self._node(line.persona, self._node(line.scene, None))

    def _node(self, ids: tuple[int, ...], parent: Prefix | None) -> Prefix:
        node = self._open.get(ids)
        if node is None:
            node = self._open[ids] = self.engine.create_prefix(ids, parent)
        return node


def steady(stage: Stage, measure: Callable[[], None]) -> None:
    """256 replies, none of which comes or goes."""
    for line in build("gpu"):
        stage.submit(line, 200)
    for _ in range(40):  # all of them read, and say a little
        stage.step()
    measure()
    for _ in range(96):
        stage.step()
    measure()


def leaving(stage: Stage, measure: Callable[[], None]) -> None:
    """16 replies end in each step, until there are none."""
    for number, line in enumerate(build("gpu")):
        stage.submit(line, 60 + number // CHURN)
    for _ in range(58):
        stage.step()
    measure()
    for _ in range(REPLIES // CHURN):
        stage.step()
    measure()


def churning(stage: Stage, measure: Callable[[], None]) -> None:
    """16 replies end in each step, and 16 new lines of 96 tokens to warm personas come."""
    lines = build("gpu")
    for number, line in enumerate(lines):
        stage.submit(line, 40 + number // CHURN)
    for _ in range(38):
        stage.step()
    measure()
    for turn in range(48):
        for line in lines[CHURN * (turn % CHURN) :][:CHURN]:
            own = Line(line.id, line.quest, line.scene, line.persona, ids(turn, line.turn))
            stage.submit(own, REPLIES // CHURN - 4)  # less what they wait and read
        stage.step()
    measure()


def waiting(stage: Stage, measure: Callable[[], None]) -> None:
    """256 replies speak, and 256 lines to the same personas wait until one of them ends."""
    for line in build("gpu"):
        stage.submit(line, 200)
    for line in build("gpu", 0, 7):
        stage.submit(line, 1)
    for _ in range(40):
        stage.step()
    measure()
    for _ in range(96):
        stage.step()
    measure()


def ids(turn: int, line: Sequence[int]) -> tuple[int, ...]:
    """A line nobody has said before."""
    return (100 + turn, *line[1:])


def bursts(stage: Stage, measure: Callable[[], None]) -> None:
    """Cold, warm and new lines: 256 at once, as in `benchmarks.gpu`."""
    for seed, turn_seed in ((0, None), (0, None), (0, 7)):
        for line in build("gpu", seed, turn_seed):
            stage.submit(line, PROFILES["gpu"].out)
        measure()
        stage.finish()
        measure()


KINDS: dict[str, Callable[[Stage, Callable[[], None]], None]] = {
    "steady": steady,
    "leaving": leaving,
    "churning": churning,
    "waiting": waiting,
    "bursts": bursts,
}


class Meter:
    """Reads a stage's times between every other call."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._before: dict[str, float] | None = None
        self._at = 0
        self.rows: list[dict[str, float]] = []
        self.by_function: cProfile.Profile | None = None

    def __call__(self) -> None:
        parts = {name: self._stage.profile.seconds("step", name) for name in PARTS}
        if self._before is None:
            gc.collect()
            self._before, self._at = parts, len(self._stage.spent)
            if self.by_function:
                self.by_function.enable()
            return
        if self.by_function:
            self.by_function.disable()
        spent = self._stage.spent[self._at :]
        row = {"steps": len(spent), "total_ms": 1e3 * sum(spent)}
        row |= {"least": 1e6 * min(spent), "median": 1e6 * statistics.median(spent)}
        row["mean"] = 1e6 * statistics.mean(spent)
        row |= {name: 1e6 * (parts[name] - self._before[name]) / len(spent) for name in PARTS}
        self.rows.append(row)
        self._before = None


def best(rounds: Sequence[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Of each measurement the run that took least: others use this machine, too."""
    return [min(runs, key=lambda row: row["total_ms"]) for runs in zip(*rounds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--launch", default="nothing,tables")
    parser.add_argument("--text", action="store_true", help="a real vocabulary")
    parser.add_argument("--model", default="default", help="whose vocabulary")
    parser.add_argument("--data", type=Path, default=Path(".cache/troupe"))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--profile-of", choices=KINDS, help="time by function, of one kind")
    parser.add_argument("--out", type=Path, help="a JSON line for each measurement")
    a = parser.parse_args()
    tokenizer: Any = NoText(SHAPE.vocab_size)
    if a.text:
        tokenizer = load_vocabulary(a.model, data_dir=a.data).tokenizer
    gc.freeze()
    print(f"{'us a step':<28}{'steps':>6}{'least':>8}{'median':>8}{'mean':>8}  ", end="")
    print("".join(f"{name:>9}" for name in PARTS) + f"{'all, ms':>10}")
    for launch in a.launch.split(","):
        for kind in [a.profile_of] if a.profile_of else a.kinds.split(","):
            rounds = []
            for _ in range(a.repetitions):
                stage = Stage(launch, tokenizer)
                meter = Meter(stage)
                if a.profile_of:
                    meter.by_function = cProfile.Profile()
                KINDS[kind](stage, meter)
                stage.finish()
                stage.close()
                rounds.append(meter.rows)
            names = ("cold", "warm", "new lines") if kind == "bursts" else ("",)
            for name, row in zip(names, best(rounds), strict=True):
                numbers = "".join(f"{row[key]:>8.0f}" for key in ("least", "median", "mean"))
                parts = "".join(f"{row[key]:>9.0f}" for key in PARTS)
                title = f"{launch}: {kind} {name}".rstrip()
                print(f"{title:<28}{row['steps']:>6}{numbers}  {parts}{row['total_ms']:>10.1f}")
                if a.out:
                    where = {"launch": launch, "kind": kind, "name": name, "text": a.text}
                    short = {key: round(value, 1) for key, value in row.items()}
                    with a.out.open("a") as file:
                        file.write(json.dumps({**where, **short}) + "\n")
            if meter.by_function:
                pstats.Stats(meter.by_function).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
