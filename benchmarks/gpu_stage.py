"""Our engine with random weights on a GPU (under Triton's interpreter without one), ready to be
asked, and what of it can be switched off.
"""

import gc
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch

from benchmarks.measuring import Figures, burst_figures, process_seconds
from benchmarks.shapes import SHAPES, NoText
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.device import layout
from engine.device.build import build_runner
from engine.loop import Engine
from engine.models.device_decoder import DeviceDecoder
from engine.outputs import Usage
from engine.overlap import OverlapEngine
from engine.params import SamplingParams
from engine.prefixes import Prefix
from engine.request import Request
from engine.weights.load import LoadedModel
from gameserver.bench.workload import Line
from kernels.tree_work import Share, TileRows, Work, plan_work
from npc.settings import ReplySettings

#: What can be switched off, and what that means.
SWITCHES = {
    "tree": "each request reads all its context by itself",
    "graphs": "every kernel of every step is launched by itself",
    "overlap": "no step is under way while the host works",
    "sharing": "each player's request computes scene and persona",
    "early": "a kernel starts after the one before has ended",
}
_NPCS = ReplySettings()
#: How tokens can be drawn: the most likely one, as the rivals draw; by top-p alone; as NPCs are
#: asked by default, with what they have said lately held back.
DRAWING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "npcs": {
        "temperature": _NPCS.temperature,
        "top_k": _NPCS.top_k,
        "top_p": _NPCS.top_p,
        "min_p": _NPCS.min_p,
        "frequency_penalty": _NPCS.frequency_penalty,
        "bad_words": tuple(f"so {number}" for number in range(150)),
        "min_tokens": 1,
    },
}


@dataclass(frozen=True, slots=True)
class Setting:
    """How an engine is set up.

    Attributes:
        shape: of the model.
        off: names of `SWITCHES`.
        drawing: of `DRAWING`.
        config: settings of the engine beside those that every benchmark has.
    """

    shape: str = "llama8b"
    off: frozenset[str] = frozenset()
    drawing: str = "greedy"
    config: Mapping[str, object] = field(default_factory=dict)

    def engine_config(self) -> EngineConfig:
        """All settings of the engine."""
        usual: dict[str, Any] = {
            "device": "cuda",
            "max_num_seqs": 256,
            "reserved_slots": 0,
            "max_num_batched_tokens": 8192,
            "max_waiting": 4096,
        }
        eager = "graphs" in self.off or device().type == "cpu"  # where nothing can be captured
        return EngineConfig(**usual | dict(self.config), enforce_eager=eager)

    @property
    def column(self) -> str:
        """What its samples are filed under: Troupe, and whatever is not as usual."""
        unusual = [self.shape] if self.shape != "llama8b" else []
        if quantization := self.config.get("quantization"):
            unusual.append(str(quantization))
        unusual += [f"no {name}" for name in sorted(self.off)]
        if self.drawing != "greedy":
            unusual.append(self.drawing)
        return ", ".join(["Troupe", *unusual])


@contextmanager
def switched_off(setting: Setting) -> Iterator[None]:
    """Lets what is off in the kernels take effect: "tree" and "early"."""
    with ExitStack() as patches:
        if "tree" in setting.off:
            patches.enter_context(mock.patch.object(layout, "plan_work", _plan_apart))
        if "early" in setting.off:
            for name, module in list(sys.modules.items()):
                if name.startswith("kernels.gpu.") and hasattr(module, "starts_early"):
                    patches.enter_context(mock.patch.object(module, "starts_early", _never))
        yield


def _plan_apart(shares: Sequence[Share], most: TileRows) -> Work:
    """Work lists that say nothing of what requests have in common, though it is the same blocks."""
    return plan_work([_alone(share) for share in shares], most)


def _alone(share: Share) -> Share:
    pieces = [replace(piece, key=-1) for piece in share.pieces]
    return Share(share.count, pieces, share.speaking)


def _never(where: torch.device) -> bool:
    return False


def device() -> torch.device:
    """The GPU; without one the CPU, where Triton interprets its kernels."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def dtype() -> torch.dtype:
    """Of weights and KV. Triton's interpreter computes with NumPy, which has no bfloat16."""
    return torch.bfloat16 if device().type == "cuda" else torch.float32


def random_model(setting: Setting) -> LoadedModel:
    """A model of the setting's shape with random weights, and no text."""
    shape = SHAPES[setting.shape]
    how = {name: setting.config[name] for name in ("quantization",) if name in setting.config}
    decoder = DeviceDecoder.random(shape, dtype(), device(), **how)  # type: ignore[arg-type]
    return LoadedModel(setting.shape, shape, decoder, NoText(shape.vocab_size), None)  # type: ignore[arg-type]


class Stage:
    """An engine, and the handles of scenes and personas that are open.

    Attributes:
        started: figures of its start.
    """

    def __init__(self, setting: Setting) -> None:
        begun = time.perf_counter()
        self.setting, self.config = setting, setting.engine_config()
        model = random_model(setting)
        length = model.config.max_len
        runner, self.blocks = build_runner(model.decoder, self.config, length)  # type: ignore[arg-type]
        self.runner = runner
        pool = BlockPool(self.blocks, self.config.block_size)
        loop = Engine if "overlap" in setting.off else OverlapEngine
        self.engine: Engine = loop(runner, model.tokenizer, pool, length, self.config)  # type: ignore[arg-type]
        self._open: dict[tuple[int, tuple[int, ...]], Prefix] = {}
        self.started = {
            "start_s": time.perf_counter() - begun,
            "process_s": process_seconds(),
            "kv_tokens": self.blocks * self.config.block_size,
        }

    def close_scenes(self) -> None:
        """Give all handles back; what they held may be evicted."""
        for node in reversed(self._open.values()):
            self.engine.release_prefix(node)
        self._open.clear()
        while self.engine.has_work:
            self.engine.step()

    def submit(self, line: Line, out: int, handle: Prefix | None = None) -> Request:
        """Queue a line; `handle` is its persona's, which takes no time to be had."""
        how = DRAWING[self.setting.drawing]
        params = SamplingParams(max_tokens=out, ignore_eos=True, **how)
        if "sharing" in self.setting.off:
            return self.engine.submit(line.prompt, params, salt=line.id)
        return self.engine.submit(line.turn, params, prefix=handle or self.persona(line))

    def say(self, lines: Sequence[Line], out: int) -> Figures:
        """All lines at once; returns when every reply has ended. Scenes are open before anybody
        speaks, as a game opens them: that makes handles and computes nothing.
        """
        shared = "sharing" not in self.setting.off
        handles = [self.persona(line) if shared else None for line in lines]
        gc.collect()
        engine = self.engine
        before = engine.gauges["prefill_tokens_computed"]
        started = time.monotonic()
        for line, handle in zip(lines, handles, strict=True):
            self.submit(line, out, handle)
        admitted = time.monotonic() - started
        usages: list[Usage] = []
        stamps: list[float] = []
        while engine.has_work:
            for output in engine.step():
                assert output.error is None, output.error
                if output.usage is not None:
                    usages.append(output.usage)
            stamps.append(time.monotonic())
        tokens = sum(usage.completion_tokens for usage in usages)
        assert tokens == len(lines) * out, "a reply is short"
        times = [((u.first_token or 0) - started, u.finished - started) for u in usages]
        gaps = [b - a for a, b in itertools.pairwise(stamps)]
        found = {
            "prefill_computed": engine.gauges["prefill_tokens_computed"] - before,
            "admit_ms": 1000 * admitted,
            "step_ms": 1000 * statistics.median(gaps) if gaps else 0.0,
            "steps": len(stamps),
        }
        if out > 1:
            found |= burst_figures(times, out, stamps[-1] - started)
        return {**found, "wall_s": stamps[-1] - started}

    def persona(self, line: Line) -> Prefix:
        """The handle of a line's scene and persona."""
        return self._node(line.persona, self._node(line.scene, None))

    def _node(self, ids: tuple[int, ...], parent: Prefix | None) -> Prefix:
        key = (parent.id if parent else -1, ids)
        if key not in self._open:
            self._open[key] = self.engine.create_prefix(ids, parent)
        return self._open[key]
