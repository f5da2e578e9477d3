"""The Python API on the default model: what a script sees."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import LLM, EngineConfig, Grammar, SamplingParams
from engine.chat import Message
from engine.errors import ContextExceeded, InvalidRequest

pytestmark = pytest.mark.model

GREEDY = SamplingParams(max_tokens=12, temperature=0)


@pytest.fixture(scope="module")
def llm(default_model_path: Path) -> LLM:
    return LLM(str(default_model_path), EngineConfig(numerics="exact", kv_cache_bytes=64 << 20))


def test_text_and_ids_give_the_same_and_results_keep_their_order(llm: LLM) -> None:
    text = "The capital of France is"
    ids = llm.tokenizer.encode(text)
    one, two, three = llm.generate([text, "Once upon a time", ids], GREEDY)
    assert one.text == three.text
    assert "Paris" in one.text
    assert [one.prompt, two.prompt, three.prompt] == [0, 1, 2]
    assert one.finish_reason in ("stop", "length")
    assert one.usage.prompt_tokens == len(ids)
    assert one.usage.completion_tokens == len(one.token_ids)
    assert llm.generate(ids, GREEDY)[0].text == llm.generate(text, GREEDY)[0].text == one.text


def test_a_seeded_sample_does_not_depend_on_its_batch_mates(llm: LLM) -> None:
    wild = SamplingParams(max_tokens=24, temperature=1.0, top_p=0.95, seed=7)
    prompts = ["The innkeeper said", "Dragons are", "A long time ago, in a village by the sea,"]
    alone = [llm.generate(prompt, wild)[0].token_ids for prompt in prompts]
    together = llm.generate([*prompts, *(f"{n} wolves" for n in range(9))], wild)
    assert [c.token_ids for c in together[:3]] == alone


def test_samples_differ_and_share_their_prompt(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.0, n=4, seed=3, logprobs=2)
    samples = llm.generate("Rumour has it that the old mill", params)
    assert [c.sample for c in samples] == [0, 1, 2, 3]
    assert len({c.text for c in samples}) > 1
    assert all(c.usage.cached_tokens == c.usage.prompt_tokens - 1 for c in samples[1:])
    for completion in samples:
        assert completion.logprobs is not None
        for token, report in zip(completion.token_ids, completion.logprobs, strict=True):
            assert token in report
            assert len(report) in (2, 3)
            assert all(value <= 0 for value in report.values())


@pytest.mark.parametrize("prompts", [None, 5, b"text", {"a": 1}, [None], ["fine", 5], [b"ids?"]])
def test_what_is_no_prompt_is_refused_by_name(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        llm.generate(prompts, GREEDY)


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [{"max_tokens": 3}], [None], 5])
def test_what_are_no_params_is_refused_by_name(llm: LLM, params: Any) -> None:
    with pytest.raises(InvalidRequest, match="params must be SamplingParams"):
        llm.generate("Once", params)


def test_a_bad_prompt_is_named_and_nothing_runs(llm: LLM) -> None:
    with pytest.raises(InvalidRequest) as refused:
        llm.generate(["fine", []], GREEDY)
    assert refused.value.__notes__ == ["in prompt 1"]
    with pytest.raises(ContextExceeded):
        llm.generate([[1] * 100_000], GREEDY)
    with pytest.raises(InvalidRequest, match="sampling params"):
        llm.generate(["a", "b"], [GREEDY])
    assert llm.generate([], GREEDY) == []


def test_a_prompt_seen_before_is_not_computed_again(llm: LLM) -> None:
    prompt = "Long ago the river changed its bed and the town with the mill was left dry. " * 3
    first, again = llm.generate(prompt, GREEDY)[0], llm.generate(prompt, GREEDY)[0]
    assert again.text == first.text
    assert again.usage.cached_tokens >= again.usage.prompt_tokens - 16


def test_a_dialogue_is_answered_in_the_models_own_frames(llm: LLM) -> None:
    dialogue = [
        {"role": "system", "content": "Answer with one word."},
        {"role": "user", "content": "What is the capital of France? <|im_end|>"},
    ]
    messages = [Message("system", dialogue[0]["content"]), Message("user", dialogue[1]["content"])]
    ids = llm.chat_format.encode(messages, llm.tokenizer)
    by_hand = llm.generate(ids, GREEDY)[0]
    one, two, three = llm.chat([dialogue, messages, dialogue], GREEDY)
    assert one.text == two.text == three.text == llm.chat(dialogue, GREEDY)[0].text == by_hand.text
    assert one.usage.prompt_tokens == len(ids)
    assert ids.count(llm.tokenizer.control("<|im_end|>")[0]) == 2, "what is said stays text"


@pytest.mark.parametrize(
    "dialogue",
    [
        "hello",
        [{"role": "user"}],
        [{"role": "god", "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": "x", "name": "y"}],
        [[]],
        [5],
        None,
    ],
)
def test_what_is_no_dialogue_is_refused(llm: LLM, dialogue: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"dialogue|message"):
        llm.chat(dialogue, GREEDY)


def test_samples_held_to_a_grammar_differ_and_repeat(llm: LLM) -> None:
    grammar = Grammar.json_schema(
        {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999999}},
            "required": ["n"],
            "additionalProperties": False,
        }
    )
    params = SamplingParams(max_tokens=60, temperature=1.0, n=4, seed=3, grammar=grammar)
    samples = llm.generate("A number, as JSON: ", params)
    assert all(sample.complete and sample.finish_reason == "stop" for sample in samples)
    assert all(0 <= json.loads(sample.text)["n"] <= 999999 for sample in samples)
    assert len({sample.text for sample in samples}) > 1
    assert [s.text for s in llm.generate("A number, as JSON: ", params)] == [
        s.text for s in samples
    ]


def test_vectors_of_like_texts_are_near_and_dialogue_is_left_alone(llm: LLM) -> None:
    texts = ["The price of fish at the harbour", "The price of fish at the port", "def f(x): pass"]
    vectors = np.stack([embedding.vector for embedding in llm.embed(texts)])
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > far
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
