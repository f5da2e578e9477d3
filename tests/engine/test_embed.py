"""Texts are read beside the dialogues, and their vectors are those of transformers."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from engine import LLM, AsyncEngine, EngineConfig, SamplingParams
from engine.errors import ContextExceeded, EngineError, EngineStopped, InvalidRequest
from engine.outputs import Embedding, RequestOutput
from engine.pooling import Pooling
from engine.weights.load import load_model
from tests.engine.fakes import CheckingRunner, finish, make_engine
from tests.engine.speech import byte_tokenizer
from tests.engine.test_overlap import LaunchingRunner
from tests.engine.test_overlap import make as make_launching

TEXTS = [
    "The bell in the old mill rings at night.",
    "ok",
    "A fisherman sells eels by the harbour gate, and nobody asks where he finds them. " * 3,
    "é🐈 日本",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with the tokenizer of the grammar tests, whose prompts begin with BOS."""
    path = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=tokenizer.control("<think>")[0],
        eos_token_id=tokenizer.control("<eos>")[0],
    )
    LlamaForCausalLM(config).save_pretrained(path)
    backend = tokenizer._control
    backend.post_processor = TemplateProcessing(
        single="<think> $A", special_tokens=[("<think>", config.bos_token_id)]
    )
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return path


@pytest.fixture(scope="module")
def settings() -> EngineConfig:
    """Small steps, so that texts are read in pieces."""
    return EngineConfig(
        numerics="exact",
        kv_cache_bytes=8 << 20,
        max_num_seqs=4,
        max_num_batched_tokens=40,
        device="cpu",
    )


@pytest.fixture(scope="module")
def llm(folder: Path, settings: EngineConfig) -> LLM:
    return LLM(str(folder), settings)


def by_transformers(folder: Path, texts: list[str], pooling: str) -> np.ndarray:
    """Unscaled vectors, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    vectors = []
    with torch.inference_mode():
        for text in texts:
            ids = tokenizer(text, return_tensors="pt").input_ids
            states = model.model(ids).last_hidden_state[0]
            vectors.append((states.mean(0) if pooling == "mean" else states[-1]).numpy())
    return np.stack(vectors)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_those_of_transformers(llm: LLM, folder: Path, pooling: Any) -> None:
    expected = by_transformers(folder, TEXTS, pooling)
    found = llm.embed(TEXTS, pooling=pooling, normalize=False)
    np.testing.assert_allclose(np.stack([e.vector for e in found]), expected, atol=2e-5)
    scaled = np.stack([e.vector for e in llm.embed(TEXTS, pooling=pooling)])
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, atol=1e-6)
    assert scaled.dtype == np.float32


@pytest.mark.parametrize("numerics", ["bf16", "fast"])
def test_other_numerics_stay_near(llm: LLM, folder: Path, numerics: Any) -> None:
    config = EngineConfig(numerics=numerics, kv_cache_bytes=8 << 20, device="cpu")
    near = LLM(str(folder), config).embed(TEXTS)
    for found, exact in zip(near, llm.embed(TEXTS), strict=True):
        assert found.vector @ exact.vector > 0.98


def test_a_text_read_again_or_with_others_has_the_same_vector_to_the_bit(llm: LLM) -> None:
    together = llm.embed([*TEXTS, *TEXTS])
    for first, again, text in zip(together, together[len(TEXTS) :], TEXTS, strict=False):
        (alone,) = llm.embed(text)
        assert (first.vector == again.vector).all() and (first.vector == alone.vector).all()


def test_reading_leaves_the_cache_as_it_was(llm: LLM) -> None:
    before = llm._engine.gauges
    llm.embed(TEXTS)
    after = llm._engine.gauges
    assert after["blocks_cached"] == before["blocks_cached"]
    assert after["blocks_free"] == before["blocks_free"]


def test_ids_and_whole_contexts_can_be_read(llm: LLM) -> None:
    (full,) = llm.embed([list(range(200)) * 2 + list(range(112))])
    assert full.prompt_tokens == 512
    with pytest.raises(ContextExceeded) as refused:
        llm.embed(["ok", [1] * 513])
    assert refused.value.__notes__ == ["in text 1"]


@pytest.mark.parametrize(
    ("texts", "options"),
    [(None, {}), ([None], {}), ([[]], {}), ([""], {}), ("a", {"pooling": "max"}), ([b"a"], {})],
)
def test_what_cannot_be_read_is_refused(settings: EngineConfig, texts: Any, options: Any) -> None:
    engine = make_engine()[0]
    llm = object.__new__(LLM)
    llm._engine, llm.tokenizer = engine, byte_tokenizer()
    with pytest.raises(InvalidRequest):
        llm.embed(texts, **options)
    assert not engine.has_work


async def test_texts_and_replies_share_the_steps(folder: Path, settings: EngineConfig) -> None:
    """Replies are what they would be alone, and all vectors come."""
    loaded = load_model(str(folder), data_dir=folder, numerics="exact")
    prompt, greedy = [5, 6, 7], SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    alone = LLM(str(folder), settings).generate(prompt, greedy)[0].token_ids
    engine = AsyncEngine(loaded, settings)
    await engine.start()
    outputs: list[RequestOutput] = []

    async def reply() -> None:
        async for output in engine.stream(prompt, greedy):
            outputs.append(output)

    try:
        vectors, _ = await asyncio.gather(engine.embed(TEXTS * 10), reply())
        with pytest.raises(InvalidRequest):
            await engine.embed(["fine", []])
        with pytest.raises(InvalidRequest):
            await engine.embed(["fine"], pooling="first")  # type: ignore[arg-type]
        left = asyncio.create_task(engine.embed(TEXTS * 20))
        await asyncio.sleep(0.01)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        again = await engine.embed(TEXTS[:1])
    finally:
        await engine.stop()
    assert tuple(t for output in outputs for t in output.token_ids) == alone
    assert len(vectors) == 40
    for number, vector in enumerate(vectors):
        assert (vector.vector == vectors[number % 4].vector).all()
    assert (again[0].vector == vectors[0].vector).all()
    assert engine.gauges()["running"] == engine.gauges()["waiting"] == 0
    with pytest.raises(EngineStopped):
        await engine.embed(["late"])


class StatesRunner(CheckingRunner):
    """Checks the KV of texts that are read, too; a token's state is its own number."""

    def run(self, plan: Any) -> Any:
        drawn = super().run(plan)
        for share in plan.sequences:
            if share.states is not None:
                assert not share.sample
                share.states(torch.tensor(share.tokens, dtype=torch.float32)[:, None])
        return drawn


def test_reading_gives_way_to_whoever_waits_for_a_reply() -> None:
    """A text of the ambient class is read in what the step leaves, in pieces."""
    engine, runner, clock = make_engine(max_num_batched_tokens=24, min_prefill_tokens=4)
    runner.__class__ = StatesRunner
    text = engine.embed(range(100), Pooling(normalize=False))
    engine.step()
    assert runner.steps[-1].rows == 24
    speaker = engine.submit([1, 2, 3], SamplingParams(max_tokens=5, temperature=0))
    ends: dict[int, RequestOutput] = {}
    for _ in range(50):
        clock[0] += 0.01
        ends |= {o.request_id: o for o in engine.step() if o.finish}
        first = runner.steps[-1].sequences[0].owner
        if speaker.state.name == "RUNNING" and not speaker.speaking:
            assert first is speaker, "the reply's line is read first"
    embedding = ends[text.id].embedding
    assert embedding is not None
    assert embedding.tolist() == [49.5]
    assert ends[text.id].usage is not None and ends[text.id].usage.prompt_tokens == 100
    assert speaker.id in ends
    engine.check()


class StatesLauncher(LaunchingRunner, StatesRunner):
    """The same, one step ahead."""


def test_with_a_step_under_way_texts_are_read_once() -> None:
    engine, runner, clock = make_launching()
    runner.__class__ = StatesLauncher
    texts = [engine.embed(range(n, 60 + n), Pooling(normalize=False)) for n in range(5)]
    gone = engine.embed(range(50), Pooling())
    reply = engine.submit([1, 2, 3], SamplingParams(max_tokens=9, temperature=0, ignore_eos=True))
    engine.step()
    engine.cancel(gone)
    ends = {output.request_id: output for output in finish(engine, clock) if output.finish}
    for number, text in enumerate(texts):
        embedding = ends[text.id].embedding
        assert embedding is not None
        assert embedding.tolist() == [29.5 + number]
    assert ends[reply.id].finish == "length"
    assert ends[gone.id].finish == "cancelled"
    rows = sum(len(s.tokens) for step in runner.steps for s in step.sequences if s.states)
    assert rows <= 5 * 60 + 50
    engine.check()


def test_a_text_never_slides() -> None:
    """What lets go of its beginning is another text."""
    engine, runner, clock = make_engine(sliding_window=16, max_model_len=90)
    runner.__class__ = StatesRunner
    engine.embed(range(80), Pooling(normalize=False))
    (end,) = finish(engine, clock)
    assert end.embedding is not None
    assert end.embedding.tolist() == [39.5]
    with pytest.raises(ContextExceeded):
        engine.embed(range(91), Pooling())


def test_a_model_without_states_refuses_that_text_alone() -> None:
    engine, _, clock = make_engine()
    text = engine.embed([1, 2, 3], Pooling())
    reply = engine.submit([1, 2, 3], SamplingParams(max_tokens=5, temperature=0, ignore_eos=True))
    ends = {output.request_id: output for output in finish(engine, clock) if output.finish}
    assert ends[text.id].finish == "failed"
    assert "no hidden states" in str(ends[text.id].error)
    assert ends[reply.id].finish == "length"
    engine.check()


def test_a_failed_step_is_told() -> None:
    engine, runner, _ = make_engine()
    engine.embed([1, 2], Pooling())
    runner.fail_next = True
    (output,) = engine.step()
    assert output.finish == "failed"
    with pytest.raises(EngineError, match="made to fail"):
        Embedding.of(output)
    engine.check()
