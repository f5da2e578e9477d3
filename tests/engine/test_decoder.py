"""The decoder equals transformers, over scattered blocks and any cut of the work."""

import random
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.errors import ModelError
from engine.loop import Engine
from engine.models.decoder import Decoder
from engine.pooling import Pooling
from engine.runner import ModelRunner
from engine.weights.gguf import GGUFCheckpoint
from engine.weights.safetensors import FolderCheckpoint
from tests.engine.paged import PagedLoop, Sequence

TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
    "rope_theta": 10000.0,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True}),
    "llama 3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "wide heads": ("Llama", {"head_dim": 32, "num_key_value_heads": 6}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen 2": ("Qwen2", {}),
    "qwen 3": ("Qwen3", {"head_dim": 32}),
}


def build_folder(shape: str, folder: Path) -> Any:
    """Save a tiny random model of this shape; returns transformers' model."""
    family, changes = SHAPES[shape]
    torch.manual_seed(len(shape))
    config = getattr(transformers, f"{family}Config")(**TINY | changes)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().float()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):  # else zeros and ones, which would hide mistakes
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size="100KB")
    return model


#: Numerics that round, and how close the logits of a tiny random model stay.
QUICK: dict[Literal["bf16", "fast"], float] = {"bf16": 0.99, "fast": 0.98}


def tokens(count: int, seed: int = 0, vocab: int = 320) -> list[int]:
    return random.Random(seed).choices(range(vocab), k=count)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers(shape: str, tmp_path: Path) -> None:
    reference = build_folder(shape, tmp_path)
    assert (tmp_path / "model.safetensors.index.json").is_file(), "a sharded folder is read"
    loop = PagedLoop(Decoder.load(FolderCheckpoint(tmp_path), "exact"))
    prompt = tokens(400)
    ours = loop.prefill(loop.open(prompt), chunk=150)
    with torch.inference_mode():
        theirs = reference(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)
    for numerics, closeness in QUICK.items():
        loop = PagedLoop(Decoder.load(FolderCheckpoint(tmp_path), numerics))
        ours = loop.prefill(loop.open(prompt), chunk=150)
        agreement = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1)
        assert agreement.mean() > closeness, numerics


@pytest.fixture(scope="module", params=["exact", *QUICK])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("tiny")
    build_folder("llama", folder)
    return Decoder.load(FolderCheckpoint(folder), request.param)


@pytest.mark.parametrize("seed", range(5))
def test_a_row_does_not_depend_on_mates_chunks_or_blocks(tiny: Decoder, seed: int) -> None:
    """Alone in one piece, against random pieces beside random others on other blocks: to the bit
    in float32, but for rounding in the others.
    """
    chance = random.Random(seed)
    prompts = [
        tokens(chance.choice((1, 2, 17, 64, 191, 193, 257, 400)), seed * 10 + n) for n in range(4)
    ]
    expected = []
    for prompt in prompts:
        loop = PagedLoop(tiny)
        expected.append(loop.prefill(loop.open(prompt, contiguous=True), chunk=len(prompt)))
    loop = PagedLoop(tiny, seed=seed)
    sequences = [loop.open(prompt) for prompt in prompts]
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    while unfinished := [s for s in sequences if s.done < len(s.tokens)]:
        chosen = chance.sample(unfinished, chance.randint(1, len(unfinished)))
        shares: list[tuple[Sequence, int]] = []
        for sequence in chosen:
            left = len(sequence.tokens) - sequence.done
            shares.append((sequence, min(left, chance.choice((1, 3, 16, 50, 130, 600)))))
        counts = [count for _, count in shares]
        for (sequence, _), rows in zip(shares, loop.step(*shares).split(counts), strict=True):
            found[sequences.index(sequence)].append(rows)
    for alone, pieces in zip(expected, found, strict=True):
        if tiny.kv_dtype == torch.float32:
            assert torch.equal(alone, torch.cat(pieces))
        else:
            agreement = torch.nn.functional.cosine_similarity(alone, torch.cat(pieces), dim=-1)
            assert agreement.min() > 0.99


def test_only_wanted_rows_get_logits(tiny: Decoder) -> None:
    loop = PagedLoop(tiny)
    sequence = loop.open(tokens(40))
    assert loop.step((sequence, 40)).shape == (40, 320)


def test_a_tensor_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    build_folder("llama", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(
        config.read_text().replace('"intermediate_size": 160', '"intermediate_size": 96')
    )
    with pytest.raises(ModelError, match=r"mlp\.gate_proj\.weight .* is \[320, 96\].*\[192, 96\]"):
        Decoder.load(FolderCheckpoint(tmp_path), "exact")


PROMPTS = [
    "Once upon a time",
    "The innkeeper looked up and said:",
    "def fibonacci(n):\n",
    "The capital of France is",
    "In 1492, 3 ships left Palos",
    "Q: What is 12 + 30?\nA:",
    "Dear Sir or Madam,\n\n",
    "Die Katze sitzt auf der",
    "Ingredients:\n- 2 eggs\n- 100 g of",
    '"Who goes there?" the guard',
    "Rain fell on the harbour. " * 30,
    "1, 1, 2, 3, 5, 8,",
]


@pytest.fixture(scope="module")
def default_reference(default_model_path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        default_model_path.parent, gguf_file=default_model_path.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def default_decoder(default_checkpoint: GGUFCheckpoint) -> Decoder:
    return Decoder.load(default_checkpoint, "exact")


@pytest.mark.model
@pytest.mark.timeout(300)  # transformers takes its time to read the file
def test_exact_embeddings_are_those_of_transformers(
    default_checkpoint: GGUFCheckpoint, default_decoder: Decoder, default_reference: Any
) -> None:
    tokenizer = default_checkpoint.tokenizer()
    loop = PagedLoop(default_decoder, blocks=64)
    config = EngineConfig(max_num_batched_tokens=64)  # the longest text is read in pieces
    runner = ModelRunner(default_decoder, loop.cache)
    engine = Engine(runner, tokenizer, BlockPool(64, 16), 512, config)
    for prompt in PROMPTS[-4:]:
        ids = tokenizer.encode(prompt)
        readings = [engine.embed(ids, Pooling(kind, normalize=False)) for kind in ("mean", "last")]
        found = {}
        while engine.has_work:
            found |= {output.request_id: output.embedding for output in engine.step()}
        with torch.inference_mode():
            states = default_reference.model(torch.tensor([ids])).last_hidden_state[0].numpy()
        for reading, expected in zip(readings, (states.mean(0), states[-1]), strict=True):
            close = 1e-4 * np.abs(expected).max()
            np.testing.assert_allclose(found[reading.id], expected, rtol=0, atol=close)


@pytest.mark.model
@pytest.mark.timeout(300)  # transformers takes its time to read the file
def test_exact_numerics_give_transformers_greedy_text(
    default_checkpoint: GGUFCheckpoint, default_decoder: Decoder, default_reference: Any
) -> None:
    """The same 64 tokens for each of a dozen prompts, decoded together on scattered blocks."""
    tokenizer = default_checkpoint.tokenizer()
    loop = PagedLoop(default_decoder, blocks=400)
    sequences = [loop.open(tokenizer.encode(prompt), room=64) for prompt in PROMPTS]
    prompt_lengths = [len(sequence.tokens) for sequence in sequences]
    for sequence in sequences:
        sequence.tokens.append(int(loop.prefill(sequence, chunk=50)[-1].argmax()))
    for _ in range(63):
        chosen = loop.step(*((sequence, 1) for sequence in sequences)).argmax(-1)
        for sequence, token in zip(sequences, chosen.tolist(), strict=True):
            sequence.tokens.append(token)
    for sequence, length in zip(sequences, prompt_lengths, strict=True):
        # Checks every greedy choice in one pass: transformers' best next token after each of ours.
        with torch.inference_mode():
            logits = default_reference(torch.tensor([sequence.tokens])).logits[0]
        assert sequence.tokens[length:] == logits[length - 1 : -1].argmax(-1).tolist()
