"""When memory is short: said before it is taken, and one request's trouble alone later."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine import footprint
from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import NoRoom, OutOfMemory
from engine.models.config import ModelConfig
from engine.weights.load import LoadedModel
from tests.engine.fakes import GREEDY, LetterTokenizer, expected, finish, make_engine
from tests.engine.test_scheduler import SCENE, last, texts

SHAPE = ModelConfig(
    vocab_size=50_000,
    hidden=2048,
    layers=24,
    heads=16,
    kv_heads=4,
    head_dim=128,
    ffn=8192,
    norm_eps=1e-5,
    max_len=32_768,
    rope_frequencies=(1.0,),
    tied=True,
)
GB = 10**9


def cpu(**settings: object) -> EngineConfig:
    return EngineConfig(device="cpu", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("free", "settings", "words"),
    [
        (GB, {}, ["this model needs", "1,000 MB are free", "smaller model"]),
        (5 * GB, {"numerics": "exact"}, ["weights 6,", "numerics to 'fast'"]),
        (5 * GB, {"kv_cache_bytes": 6 * GB}, ["KV cache 6,000 MB", "lower kv_cache_bytes to 3,"]),
        (
            9 * GB,
            {"kv_cache_bytes": GB, "max_model_len": 32_000},
            ["max_model_len = 32000", "raise kv_cache_bytes to 1,572,864,000"],
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_taken(
    monkeypatch: pytest.MonkeyPatch, free: int, settings: dict[str, object], words: list[str]
) -> None:
    monkeypatch.setattr(footprint, "available", lambda: free)
    with pytest.raises(OutOfMemory) as caught:
        footprint.check(SHAPE, cpu(**settings))
    for word in words:
        assert word in str(caught.value)


def test_what_fits_passes_and_the_default_cache_leaves_the_machine_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(footprint, "available", lambda: 6 * GB)
    footprint.check(SHAPE, cpu())
    assert footprint.footprint(SHAPE, cpu()).cache == int(1.5 * GB)


def test_a_container_has_what_its_limit_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(footprint, "_GROUP", tmp_path)
    whole = footprint.available()
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    assert footprint.available() > whole / 2, "no limit"
    (tmp_path / "memory.max").write_text("1000000\n")
    assert footprint.available() == 400_000, "cached files are given back when asked"


def test_a_pool_that_is_too_small_or_too_large_names_bytes_and_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Decoder:
        kv_dtype = torch.float32
        block_multiple = 1

        def __getattr__(self, name: str) -> object:
            return None

    monkeypatch.setattr(footprint, "available", lambda: 10**8)
    monkeypatch.setattr("engine.build.HostDecoder", Decoder)
    model = LoadedModel("m", SHAPE, Decoder(), LetterTokenizer(), None)  # type: ignore[arg-type]
    with pytest.raises(OutOfMemory, match=r"holds 0 blocks .* raise kv_cache_bytes"):
        build_engine(model, cpu(kv_cache_bytes=1000))
    with pytest.raises(OutOfMemory, match=r"does not fit, 100,000,000 .* lower kv_cache_bytes"):
        build_engine(model, cpu(kv_cache_bytes=10**9))


def test_a_request_that_does_not_fit_beside_what_is_kept_is_busy_at_once_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, _, clock = make_engine(blocks=16)
    engine._pool.block_bytes = 1000
    engine.warm(engine.create_prefix(SCENE), lambda error: None)  # 8 of 16 blocks
    finish(engine, clock)
    with caplog.at_level(logging.WARNING, "troupe.engine"):
        for _ in range(3):
            with pytest.raises(NoRoom) as caught:
                engine.submit(list(range(40)), GREEDY)  # 12 blocks
        assert (caught.value.required, caught.value.available) == (12_000, 8_000)
        assert caught.value.code == "busy"
        assert caught.value.retry_ms > 0
    (record,) = caplog.records
    assert "12,000 bytes" in record.getMessage()
    assert "8,000 are available" in record.getMessage()
    fits = engine.submit(list(range(20)), GREEDY)
    assert texts(finish(engine, clock), fits) == expected(list(range(20)), 6)
    clock[0] += 61
    with caplog.at_level(logging.WARNING, "troupe.engine"), pytest.raises(NoRoom):
        engine.submit(list(range(40)), GREEDY)
    assert len(caplog.records) == 2
    engine.check()


def test_a_request_that_waits_for_memory_in_vain_is_busy_and_others_go_on() -> None:
    engine, _, clock = make_engine(blocks=16)
    first = engine.submit(list(range(20)), GREEDY)
    late = engine.submit(list(range(40)), replace(GREEDY, max_tokens=4), salt="x")
    engine.warm(engine.create_prefix(SCENE), lambda error: None)
    outputs = finish(engine, clock)
    assert texts(outputs, first) == expected(list(range(20)), 6)
    end = last(outputs, late)
    assert end.finish in ("length", "failed")
    if end.finish == "failed":
        assert isinstance(end.refusal, NoRoom)
    assert engine.gauges["blocks_held"] in (0, 8)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: ...")],
)
def test_a_step_without_memory_ends_its_requests_as_busy_and_the_engine_goes_on(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, runner, clock = make_engine()
    run, failed = runner.run, []

    def fail(plan: object) -> object:
        monkeypatch.setattr(runner, "run", run)
        failed.append(plan)
        raise error

    monkeypatch.setattr(runner, "run", fail)
    victim = engine.submit([1, 2], GREEDY)
    outputs = finish(engine, clock)
    assert isinstance(last(outputs, victim).refusal, NoRoom)
    again = engine.submit([1, 2], GREEDY)
    assert texts(finish(engine, clock), again) == expected([1, 2], 6)
    engine.check()
