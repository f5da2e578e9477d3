"""The harness of a GPU measures what it says, here on a tiny model under Triton's interpreter."""

import gc
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest
import torch

import tests.triton_mode  # noqa: F401 - before Triton itself

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from benchmarks import gpu, gpu_parts, gpu_stage, rounds
from benchmarks.gpu_stage import Setting, Stage, switched_off
from benchmarks.measuring import Column, Sample, read_samples
from benchmarks.rounds import CACHES, Recorder, distinct_tokens
from benchmarks.shapes import SHAPES
from engine.models.config import ModelConfig, rope_frequencies
from gameserver.bench.workload import PROFILES, Profile, build
from kernels.gpu import layers, tree_attention
from kernels.tree_work import Share, TileRows, Work, plan_work

SHAPE = ModelConfig(
    vocab_size=128,
    hidden=32,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=16,
    ffn=48,
    norm_eps=1e-5,
    max_len=256,
    rope_frequencies=rope_frequencies(16, {"rope_theta": 10000.0}),
    tied=True,
)
SMALL = {
    "kv_cache_bytes": 1 << 20,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "min_prefill_tokens": 8,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(SHAPES, "mini", SHAPE)
    monkeypatch.setitem(PROFILES, "mini", Profile(1, 2, 1, 17, 5, 3, 2, vocab=128))
    for module in (gpu_parts, rounds):
        monkeypatch.setattr(module, "STEPS", 2)
    monkeypatch.setattr(gpu_parts, "BATCHES", (2,))
    yield
    gc.unfreeze()


def run(tmp_path: Path, *parts: str, off: str = "", **config: object) -> list[Sample]:
    setting = Setting("mini", frozenset(filter(None, [off])), config={**SMALL, **config})
    out = tmp_path / "samples"
    recorder = Recorder(out, Column(setting.column, "mini", 0, "none"))
    gpu.take(list(parts), gpu_parts.Run(setting, recorder, ("mini",), 0, 1))
    return read_samples(out)


def test_bursts_compute_each_prompt_token_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "samples"
    given = [f"{name}={value}" for name, value in SMALL.items()]
    command = [
        "gpu",
        "--shape",
        "mini",
        "--profiles",
        "mini",
        "--repetitions",
        "1",
        "--set",
        *given,
    ]
    monkeypatch.setattr(sys, "argv", [*command, "--parts", "bursts", "--out", str(out)])
    gpu.main()
    start, *samples = read_samples(out)
    assert "max_num_seqs=8" in start.software
    assert (start.measure, start.column) == ("start", "Troupe, mini")
    assert start.figures["kv_tokens"] > 0
    assert [sample.measure for sample in samples] == list(CACHES)
    cold, warm, lines = (sample.figures for sample in samples)
    assert cold["prefill_computed"] == distinct_tokens("mini") == 33
    assert cold["prefill_ratio"] == 1
    assert warm["prefill_computed"] <= lines["prefill_computed"] == 6
    assert cold["tok_s"] > 0 and cold["ttft_p99_s"] <= cold["wall_s"]


def test_steps_and_what_the_host_does_in_them(tmp_path: Path) -> None:
    _, step, host = run(tmp_path, "decode", "host")
    assert (step.measure, host.measure) == ("decode-2", "host-2")
    assert step.figures["tok_s"] == pytest.approx(2000 / step.figures["step_ms"], rel=1e-3)
    parts = [host.figures[f"{name}_ms"] for name in ("take_in", "plan", "launch", "deliver")]
    assert 0 < sum(parts) <= host.figures["host_ms"] <= host.figures["step_ms"]


def test_streams(tmp_path: Path) -> None:
    samples = run(tmp_path, "stream")
    assert [s.measure for s in samples[1:]] == [f"at-once-{cache}" for cache in CACHES]
    assert {"ttft_p99", "gap_p99", "tok_s"} <= set(samples[1].figures)


def test_quests_have_a_class_of_their_own_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(gpu_parts, "_played", lambda *_, classes: seen.append(classes) or {})
    samples = run(tmp_path, "quests")
    assert [sample.measure for sample in samples[1:]] == [
        f"{name}-{cache}" for name in ("quests", "quests-equal") for cache in CACHES
    ]
    assert seen == [True] * 6 + [False] * 6


def test_the_event_loop_is_watched_while_everybody_is_answered(tmp_path: Path) -> None:
    (sample,) = run(tmp_path, "lag")
    assert 0 <= sample.figures["lag_ms_p50"] <= sample.figures["lag_ms_p99"]
    assert sample.figures["tok_s"] > 0


def test_a_full_pool_is_seen_and_what_lies_idle_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = gpu.Part(gpu_parts.full, profile="mini")
    monkeypatch.setitem(gpu.PARTS, "full", part)
    monkeypatch.setattr(gpu_parts, "POOL_SHARE", 1.5)  # of so few blocks one is much
    (sample,) = run(tmp_path, "full", block_size=4)
    assert 0.5 < sample.figures["kv_use_least"] <= sample.figures["kv_use"] <= 1
    assert 0 <= sample.figures["fragmentation"] <= sample.figures["fragmentation_most"] < 0.5


def test_what_is_switched_off_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens(off: str) -> list[tuple[int, ...]]:
        setting = Setting("mini", frozenset(filter(None, [off])), config=SMALL)
        with switched_off(setting):
            return spoken(Stage(setting), off)

    def spoken(stage: Stage, off: str) -> list[tuple[int, ...]]:
        requests = [stage.submit(line, 2) for line in build("mini")]
        said: dict[int, list[int]] = {request.id: [] for request in requests}
        while stage.engine.has_work:
            for output in stage.engine.step():
                said[output.request_id] += output.token_ids
        computed = stage.engine.gauges["prefill_tokens_computed"]
        assert computed == (2 * 25 if off == "sharing" else 33)
        return [tuple(said[request.id]) for request in requests]

    monkeypatch.setattr(gpu_stage, "dtype", lambda: torch.float32)
    keys: set[int] = set()

    def watched(shares: Sequence[Share], most: TileRows) -> Work:
        keys.update(piece.key for share in shares for piece in share.pieces)
        return plan_work(shares, most)

    usual = tokens("")
    monkeypatch.setattr(gpu_stage, "plan_work", watched)
    assert tokens("tree") == usual
    assert keys == {-1}
    assert all(tokens(off) == usual for off in ("overlap", "sharing"))


def test_kernels_that_may_start_early_do_not_where_that_is_off() -> None:
    before = layers.starts_early
    with switched_off(Setting(off=frozenset(["early"]))):
        assert not any(
            module.starts_early(torch.device("cuda")) for module in (layers, tree_attention)
        )
    assert layers.starts_early is tree_attention.starts_early is before


def test_parts_of_other_engines_run_in_processes_of_their_own_and_whatever_fails_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []

    def started(command: list[str], check: bool) -> CompletedProcess[str]:
        commands.append(command)
        return CompletedProcess(command, returncode="stream" in command[-1])

    monkeypatch.setattr(gpu, "subprocess", SimpleNamespace(run=started))
    monkeypatch.setattr(sys, "argv", ["gpu", "--parts", "stream,decode,full", "--seed", "4"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == "failed: stream"
    assert [command[-2:] for command in commands] == [
        ["--parts", part] for part in ("decode", "stream", "full")
    ]
    assert all("--seed" in command for command in commands)


def test_settings_name_their_column() -> None:
    assert Setting().column == "Troupe"
    assert Setting("qwen05b", config={"quantization": "fp8"}).column == "Troupe, qwen05b, fp8"
    assert Setting(off=frozenset(["tree"])).column == "Troupe, no tree"


def test_parts_share_an_engine_where_they_can() -> None:
    assert gpu.groups(["quests", "decode", "stream", "bursts", "full", "lag"]) == [
        ["bursts", "decode"],
        ["stream"],
        ["quests"],
        ["full"],
        ["lag"],
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--parts", "burst"], "no part 'burst'"),
        (["--profiles", "huge"], "no profile 'huge'"),
        (["--off", "tea"], "no switch 'tea'"),
    ],
)
def test_unknown_names_are_refused(
    arguments: list[str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    with pytest.raises(SystemExit):
        gpu.main()
    assert error in capsys.readouterr().err


def test_replies_drawn_as_npcs_draw_them_have_records() -> None:
    """Else the host would draw them, and the benchmark measure something else."""
    stage = Stage(Setting("mini", drawing="npcs", config=SMALL))
    stage.say(build("mini", 0)[:2], 3)
    drawing = stage.runner._drawing  # type: ignore[attr-defined]
    assert len(drawing._place) == 2 and not drawing._crowded_out
