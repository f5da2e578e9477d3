"""vLLM is asked what Troupe is asked, and what it answers is written down as ours is."""

import gc
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import streams
from benchmarks.measuring import Sample, read_samples
from benchmarks.rivals import vllm_gpu
from benchmarks.rounds import CACHES, distinct_tokens, rounds
from gameserver.bench.workload import build

SAID: list[tuple[list[int], int, int]] = []  # prompt, tokens, priority of each request


class FakeParams:
    def __init__(self, max_tokens: int, **others: object) -> None:
        self.max_tokens = max_tokens


def outputs(count: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(token_ids=[7] * count)]


class FakeEngine:
    """As much of vLLM's engines as is used; every prompt was seen but for its last token."""

    settings: dict[str, Any]

    def __init__(self, **settings: Any) -> None:
        FakeEngine.settings = settings
        sizes = SimpleNamespace(num_gpu_blocks=10, block_size=16)
        self.vllm_config = SimpleNamespace(cache_config=sizes)
        self.llm_engine = self

    def reset_prefix_cache(self) -> bool:
        return True

    def generate(
        self, prompts: list[dict[str, list[int]]], params: FakeParams, use_tqdm: bool
    ) -> list[SimpleNamespace]:
        found = []
        for prompt in prompts:
            ids = prompt["prompt_token_ids"]
            SAID.append((ids, params.max_tokens, 0))
            cached = len(ids) - 1
            found.append(
                SimpleNamespace(outputs=outputs(params.max_tokens), num_cached_tokens=cached)
            )
        return found


class FakeAsyncEngine(FakeEngine):
    @classmethod
    def from_engine_args(cls, settings: dict[str, Any]) -> "FakeAsyncEngine":
        return cls(**settings)

    async def reset_prefix_cache(self) -> bool:  # type: ignore[override]
        return True

    async def generate(  # type: ignore[override]
        self, prompt: dict[str, list[int]], params: FakeParams, request_id: str, priority: int
    ) -> AsyncIterator[SimpleNamespace]:
        SAID.append((prompt["prompt_token_ids"], params.max_tokens, priority))
        for _ in range(params.max_tokens):
            yield SimpleNamespace(outputs=outputs(1))

    def shutdown(self) -> None:
        pass


@pytest.fixture(autouse=True)
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    SAID.clear()
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(streams, "QUESTS_FROM_S", 0.0)
    for name, content in {
        "vllm": {"LLM": FakeEngine, "SamplingParams": FakeParams},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA=1)},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": dict},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": FakeAsyncEngine},
    }.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vllm_gpu, "version", lambda name: "0")
    yield
    gc.enable()
    gc.unfreeze()


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> list[Sample]:
    usual = ["vllm_gpu", "--model", "folder", "--profiles", "tiny", "--repetitions", "2"]
    monkeypatch.setattr(sys, "argv", [*usual, "--out", str(out), *arguments])
    vllm_gpu.main()
    return read_samples(out)


def test_bursts_and_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    samples = run(monkeypatch, tmp_path / "out", "--parts", "bursts,decode")
    assert [s.measure for s in samples[:7]] == ["start", *CACHES, *CACHES]
    assert {(s.column, s.seed) for s in samples} == {("vLLM", 0)}
    assert samples[0].figures["kv_tokens"] == 160
    assert samples[1].figures["prefill_computed"] == 8  # one token of each line
    assert samples[1].figures["distinct"] == distinct_tokens("tiny")
    steps = [s for s in samples if s.measure.startswith("decode")]
    assert [s.measure for s in steps] == ["decode-1"] * 2 + ["decode-64"] * 2 + ["decode-256"] * 2
    first = next(rounds("tiny", 0, 0))
    asked = [prompt for prompt, tokens, _ in SAID[8:16]]  # after a rehearsal's eight
    assert asked == [line.prompt for line in first.lines["cold"]]


def test_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    samples = run(monkeypatch, tmp_path / "out", "--parts", "stream", "--rates", "0,500")
    assert [s.measure for s in samples[1:4]] == [f"at-once-{cache}" for cache in CACHES]
    assert [s.measure for s in samples[-3:]] == [f"poisson-500-{cache}" for cache in CACHES]
    assert {"tok_s", "ttft_p99", "gap_p99"} <= set(samples[-1].figures)
    assert {priority for *_, priority in SAID} == {0}


def test_quests_are_a_class_of_their_own_or_equal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    samples = run(monkeypatch, tmp_path / "out", "--parts", "quests", "--repetitions", "1")
    assert [s.measure for s in samples] == [
        f"{name}-{cache}" for name in ("quests", "quests-equal") for cache in CACHES
    ]
    assert FakeEngine.settings["max_num_seqs"] == vllm_gpu.QUEST_SLOTS
    assert FakeEngine.settings["scheduling_policy"] == "priority"
    urgent = {tuple(line.prompt) for line in build("tiny") if line.quest}
    classed, equal = SAID[8:56], SAID[56:]
    assert all((tuple(p) in urgent) == (c == 0) for p, _, c in classed if tuple(p) in urgent)
    assert any(priority == 1 for *_, priority in classed)
    assert {priority for *_, priority in equal} == {0}


def test_rounds_end_where_they_are_told_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    samples = run(monkeypatch, tmp_path / "out", "--parts", "stream", "--until", "cold")
    assert [s.measure for s in samples[1:]] == ["at-once-cold"] * 2 + ["poisson-100-cold"] * 2


def test_each_engine_has_a_run_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path / "out", "--parts", "bursts,stream")
    assert "need 2 engines" in capsys.readouterr().err


def test_figures_of_a_stream_know_classes_that_are_there() -> None:
    early, late = streams.Reply(True, 0.0, [0.01, 0.02]), streams.Reply(False, 0.5, [0.9, 1.0])
    found = streams.figures([early, late])
    assert (found["quest_ttft_p99"], found["ttft_p99"], found["gap_max"]) == pytest.approx(
        (10, 400, 100)
    )
    assert found["tok_s"] == 4
    assert "other_ttft_p50" not in streams.figures([early])


def test_rounds_share_nothing_but_what_they_should() -> None:
    found = list(rounds("tiny", 3, 2))
    assert [one.number for one in found] == [0, 1, 2]
    scenes = [{line.scene for line in one.lines["cold"]} for one in found]
    assert not scenes[0] & scenes[1] and not scenes[1] & scenes[2]
    for one in found:
        cold, lines = one.lines["cold"], one.lines["lines"]
        assert one.lines["warm"] == cold
        assert [line.persona for line in cold] == [line.persona for line in lines]
        assert not {line.turn for line in cold} & {line.turn for line in lines}
        parts = [{x.scene for x in cold}, {x.persona for x in cold}, {x.turn for x in cold}]
        assert sum(len(part) for several in parts for part in several) == one.distinct
