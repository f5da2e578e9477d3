"""Our engine under the game's workload: what it is asked, and what is switched off."""

import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from benchmarks.measuring import Column, Figures, Sample, burst_figures
from engine.build import build_engine
from engine.config import EngineConfig
from engine.kv.cache import KVCache
from engine.loop import Engine
from engine.outputs import RequestOutput, Usage
from engine.pace import Pace
from engine.params import SamplingParams
from engine.percentile import percentile
from engine.plan import SequenceStep
from engine.prefixes import Prefix
from engine.runner import HostDecoder
from engine.weights.load import AnyNumerics, LoadedModel
from gameserver.bench.workload import PROFILES, Line, build

#: Quest-givers' lines per sample, their length, and how long a player lets the scene talk before.
IDLE_QUESTS, BUSY_QUESTS, QUEST_TOKENS, MOST_PAUSE_S = 15, 30, 4, 0.1
#: Ordinary replies that outlast a sample.
ENDLESS = 600


@dataclass(frozen=True, slots=True)
class Setting:
    """How a column differs from the product.

    Attributes:
        numerics: of the model.
        talks, quests: which measures are taken.
        reads: whether what sequences have in common is read once for all of them, or for each.
        nodes: whether scenes and personas are computed once, or by each player's request.
        reserved_slots, parking: see `EngineConfig`; for quest-givers.
    """

    numerics: AnyNumerics
    talks: bool = True
    quests: bool = False
    reads: Literal["shared", "apart"] = "shared"
    nodes: Literal["shared", "own"] = "shared"
    reserved_slots: int | None = None
    parking: bool = True


class ReadsApart(HostDecoder):
    """A decoder that is not told which context its sequences have in common.

    Their blocks are still the same ones, but are read again for each sequence.
    """

    def __init__(self, decoder: HostDecoder, kv_dtype: torch.dtype) -> None:
        self.kv_dtype = kv_dtype
        self.block_multiple = decoder.block_multiple
        self._decoder = decoder

    def compute(self, sequences: Sequence[SequenceStep], cache: KVCache) -> torch.Tensor:
        """See `engine.runner.HostDecoder.compute`."""
        apart = [
            replace(share, segments=tuple(replace(part, node=-1) for part in share.segments))
            for share in sequences
        ]
        return self._decoder.compute(apart, cache)

    def parts(self) -> dict[str, float]:
        """See `engine.runner.HostDecoder.parts`."""
        return self._decoder.parts()


class Stage:
    """A fresh engine on a loaded model, and handles of scenes and personas."""

    def __init__(self, model: LoadedModel, setting: Setting, config: EngineConfig) -> None:
        if setting.reads == "apart":
            decoder = ReadsApart(model.decoder, model.decoder.kv_dtype)  # type: ignore[arg-type]
            model = replace(model, decoder=decoder)  # type: ignore[arg-type]
        self.engine: Engine = build_engine(model, config)
        self._own = setting.nodes == "own"
        self._open: dict[tuple[int, tuple[int, ...]], Prefix] = {}

    def submit(self, line: Line, out: int, priority: int = 1) -> int:
        """Queue a line; returns the request's id."""
        params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=True)
        if self._own:
            return self.engine.submit(line.prompt, params, priority=priority, salt=line.id).id
        persona = self._node(line.persona, self._node(line.scene, None))
        return self.engine.submit(line.turn, params, prefix=persona, priority=priority).id

    def step(self) -> list[RequestOutput]:
        """Compute a step."""
        outputs = self.engine.step()
        for output in outputs:
            assert output.error is None, output.error
        return outputs

    def finish(self) -> list[Usage]:
        """Step until nothing is left; what each request took."""
        usages: list[Usage] = []
        while self.engine.has_work:
            usages += [output.usage for output in self.step() if output.usage is not None]
        return usages

    def _node(self, ids: tuple[int, ...], parent: Prefix | None) -> Prefix:
        key = (parent.id if parent else -1, ids)
        if key not in self._open:
            self._open[key] = self.engine.create_prefix(ids, parent)
        return self._open[key]


def burst(stage: Stage, lines: Sequence[Line], out: int) -> Figures:
    """All lines at once."""
    before = stage.engine.gauges["prefill_tokens_computed"]
    started = time.monotonic()
    for line in lines:
        stage.submit(line, out)
    usages = stage.finish()
    wall = time.monotonic() - started
    times = [((u.first_token or 0) - started, u.finished - started) for u in usages]
    computed = stage.engine.gauges["prefill_tokens_computed"] - before
    return {**burst_figures(times, out, wall), "prefill_computed": computed}


class Players:
    """Draws new lines to the NPCs of a workload."""

    def __init__(self, lines: Sequence[Line], vocab: int, seed: int) -> None:
        self.lines = lines
        self._ordinary = [line for line in lines if not line.quest]
        self._quests = [line for line in lines if line.quest]
        self._vocab = vocab
        self._chance = random.Random(seed)

    def line(self, *, quest: bool) -> Line:
        """New words to some NPC."""
        chance = self._chance
        line = chance.choice(self._quests if quest else self._ordinary)
        return replace(line, turn=tuple(chance.randrange(100, self._vocab) for _ in line.turn))

    def pause(self) -> float:
        """Seconds until a quest-giver is spoken to again."""
        return self._chance.uniform(0, MOST_PAUSE_S)


class Crowd:
    """Ordinary replies of `out` tokens; whenever one has ended, another is asked for."""

    def __init__(self, stage: Stage, players: Players, out: int, replies: int) -> None:
        self._stage, self._players, self._out = stage, players, out
        for _ in range(replies):
            stage.submit(players.line(quest=False), out)

    def step(self) -> list[RequestOutput]:
        """Compute a step."""
        outputs = self._stage.step()
        for output in outputs:
            if output.usage is not None and output.usage.completion_tokens == self._out:
                self._stage.submit(self._players.line(quest=False), self._out)
        return outputs


def quests(stage: Stage, players: Players, out: int, config: EngineConfig) -> Figures:
    """First tokens of quest-givers' new lines when nobody else speaks, and when ordinary replies of
    `out` tokens have taken all slots they may take and as many more wait.

    Lines arrive at any moment of a step, from a thread of their own as players' lines do.
    """
    for line in players.lines:
        stage.submit(line, 1)  # scenes and personas are warm
    stage.finish()
    idle = []
    for _ in range(IDLE_QUESTS):
        stage.submit(players.line(quest=True), QUEST_TOKENS, priority=0)
        (usage,) = stage.finish()
        idle.append(_wait(usage))
    pace = Pace.of(config)
    crowd = Crowd(stage, players, out, 2 * pace.max_num_seqs)
    while stage.engine.gauges["running"] < pace.max_num_seqs - pace.reserved_slots:
        crowd.step()
    busy = [_wait(_ask(stage, crowd, players)) for _ in range(BUSY_QUESTS)]
    return {
        "idle_p50_s": statistics.median(idle),
        "idle_p99_s": percentile(idle, 99),
        "busy_p50_s": statistics.median(busy),
        "busy_p99_s": percentile(busy, 99),
        "ratio": percentile(busy, 99) / statistics.median(idle),
    }


def _ask(stage: Stage, crowd: Crowd, players: Players) -> Usage:
    """Speak to a quest-giver some time from now, while the crowd goes on."""
    line, asked = players.line(quest=True), list[int]()
    player = threading.Timer(
        players.pause(), lambda: asked.append(stage.submit(line, QUEST_TOKENS, priority=0))
    )
    player.start()
    while True:
        for output in crowd.step():
            if output.usage is not None and output.request_id in asked:
                return output.usage


def _wait(usage: Usage) -> float:
    """Seconds from a line's arrival to its reply's first token."""
    return (usage.first_token or 0) - usage.arrived


def warm_up(model: LoadedModel, setting: Setting, threads: int | None) -> None:
    """Whatever the first steps of a process allocate or compile."""
    config = EngineConfig(numerics=setting.numerics, threads=threads, device="cpu")
    burst(Stage(model, setting, config), build("tiny", 99), PROFILES["tiny"].out)


def take_samples(
    column: Column, setting: Setting, model: LoadedModel, threads: int | None
) -> Iterator[Sample]:
    """Every measure of a column once."""
    profile, seed = column.profile, column.seed
    lines, out = build(profile, seed), PROFILES[profile].out
    if setting.talks:
        # As many slots as lines, for all of them: that is what the other engines get.
        config = EngineConfig(
            numerics=setting.numerics,
            threads=threads,
            device="cpu",
            max_num_seqs=len(lines),
            reserved_slots=0,
        )
        new_lines = build(profile, seed, turn_seed=seed + 1)
        alone, stage = Stage(model, setting, config), Stage(model, setting, config)
        yield column.sample("alone", partial(burst, alone, lines[:1], out))
        yield column.sample("cold", partial(burst, stage, lines, out))
        yield column.sample("warm", partial(burst, stage, lines, out))
        yield column.sample("lines", partial(burst, stage, new_lines, out))
    if setting.quests:
        config = EngineConfig(
            numerics=setting.numerics,
            threads=threads,
            device="cpu",
            reserved_slots=setting.reserved_slots,
            parking=setting.parking,
        )
        for measure, length in (("quests", ENDLESS), ("quests-lively", out)):
            players = Players(lines, PROFILES[profile].vocab, seed + 1)
            take = partial(quests, Stage(model, setting, config), players, length, config)
            yield column.sample(measure, take)
