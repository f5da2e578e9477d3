"""What a sliding dialogue computes, against a dense model in float64 that keeps keys unrotated."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine.blocks import BlockPool
from engine.build import build_engine
from engine.chat import ChatFormat
from engine.config import EngineConfig
from engine.errors import ModelError
from engine.kv.cache import KVCache
from engine.loop import Engine
from engine.models.decoder import Decoder, Numerics
from engine.params import SamplingParams
from engine.plan import Segment, SequenceStep
from engine.prefixes import Prefix
from engine.runner import HostDecoder, ModelRunner
from engine.sliding import Sliding
from engine.weights.load import LoadedModel, _host_decoder
from engine.weights.safetensors import FolderCheckpoint
from tests.engine.families import VOCAB, build, long_rope
from tests.engine.test_families import words

BLOCK = 16


class Numbers:
    """Tokens are numbers."""

    vocab_size = VOCAB
    eos_ids: frozenset[int] = frozenset()
    concatenates = True

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f"{token} " for token in ids)


def engine_of(decoder: HostDecoder, config: EngineConfig, blocks: int = 40) -> Engine:
    shape = decoder.config  # type: ignore[attr-defined]
    cache = KVCache(shape.layers, shape.kv_heads, shape.head_dim, blocks, BLOCK,
                    decoder.kv_dtype, torch.device("cpu"))  # type: ignore[attr-defined]  # fmt: skip
    pool = BlockPool(blocks, BLOCK)
    return Engine(ModelRunner(decoder, cache), Numbers(), pool, shape.max_len, config)  # type: ignore[arg-type]


class Dense:
    """A Llama that reads one token at a time and can forget some of those it has read.

    A key's rotation is that of its place among the tokens that are left.
    """

    def __init__(self, checkpoint: FolderCheckpoint) -> None:
        self._tensor = lambda name: checkpoint.tensor(name).double()
        self.config = checkpoint.config
        self._frequencies = torch.tensor(self.config.rope_frequencies, dtype=torch.float64)
        self._kept: list[list[tuple[torch.Tensor, torch.Tensor]]] = [
            [] for _ in range(self.config.layers)
        ]

    def __len__(self) -> int:
        return len(self._kept[0])

    def forget(self, first: int, count: int) -> None:
        for layer in self._kept:
            del layer[first : first + count]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean() + self.config.norm_eps).sqrt() * self._tensor(name)

    def _turn(self, x: torch.Tensor, places: torch.Tensor, layer: int) -> torch.Tensor:
        """`x` [tokens, heads, dim] at `places`."""
        if layer in self.config.unrotated_layers:
            return x
        angles = places[:, None, None] * self._frequencies
        low, high = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def read(self, token: int) -> torch.Tensor:
        """Log-probabilities of what comes next, [vocab]."""
        config, dim = self.config, self.config.head_dim
        x = self._tensor("model.embed_tokens.weight")[token]
        for layer in range(config.layers):
            name = f"model.layers.{layer}"
            normed = self._norm(x, f"{name}.input_layernorm.weight")
            q, k, v = (
                (self._tensor(f"{name}.self_attn.{side}_proj.weight") @ normed).view(-1, dim)
                for side in "qkv"
            )
            self._kept[layer].append((k, v))
            places = torch.arange(len(self._kept[layer]), dtype=torch.float64)
            keys = self._turn(torch.stack([k for k, _ in self._kept[layer]]), places, layer)
            values = torch.stack([v for _, v in self._kept[layer]])
            q = self._turn(q[None], places[-1:], layer)[0]
            seen = -config.window(layer)  # 0: from the first on
            keys, values = keys[seen:], values[seen:]
            group = config.heads // config.kv_heads
            keys, values = (side.repeat_interleave(group, 1) for side in (keys, values))
            share = (torch.einsum("hd,thd->ht", q, keys) * dim**-0.5).softmax(-1)
            mixed = torch.einsum("ht,thd->hd", share, values).reshape(-1)
            x = x + self._tensor(f"{name}.self_attn.o_proj.weight") @ mixed
            normed = self._norm(x, f"{name}.post_attention_layernorm.weight")
            gate, up = (self._tensor(f"{name}.mlp.{side}_proj.weight") @ normed
                        for side in ("gate", "up"))  # fmt: skip
            x = x + self._tensor(f"{name}.mlp.down_proj.weight") @ (
                torch.nn.functional.silu(gate) * up
            )
        head = "model.embed_tokens" if config.tied else "lm_head"
        logits = self._tensor(f"{head}.weight") @ self._norm(x, "model.norm.weight")
        return logits.log_softmax(-1)


@pytest.mark.parametrize("family", ["llama 3", "smollm 3", "mistral"])
def test_equals_a_dense_model_that_forgets(family: str, tmp_path: Path) -> None:
    """A scene, then nearly three times the model's positions in one reply."""
    changes = {"no_rope_layer_interval": 2} if family == "smollm 3" else {}
    build(family, tmp_path, num_hidden_layers=2, **changes)
    checkpoint = FolderCheckpoint(tmp_path)
    checkpoint.config = checkpoint.config.within(100)
    config = EngineConfig(sliding_window=32, sink_tokens=5)
    sliding = Sliding.of(config)
    assert sliding == Sliding(16, 32, 16)
    running = engine_of(Decoder.load(checkpoint, "exact"), config)
    scene, prompt = words(21, 1), words(9, 2)
    prefix = running.create_prefix(scene)
    params = SamplingParams(max_tokens=250, temperature=0, ignore_eos=True, logprobs=1)
    running.submit(prompt, params, prefix=prefix)
    outputs = [output for _ in range(350) if running.has_work for output in running.step()]
    said = [token for output in outputs for token in output.token_ids]
    reported = [step for output in outputs for step in output.logprobs or ()]
    assert len(said) == len(reported) == 250

    dense = Dense(checkpoint)
    for token in (*scene, *prompt[:-1]):
        dense.read(token)
    last = prompt[-1]
    for token, theirs in zip(said, reported, strict=True):
        if len(dense) == len(scene) + sliding.room:
            dense.forget(len(scene) + sliding.sinks, sliding.stretch)
        wanted = dense.read(last)
        assert float(wanted.max() - wanted[token]) < 1e-4
        assert theirs[token] == pytest.approx(float(wanted[token]), abs=1e-3)
        last = token
    assert len(dense) <= 100


@pytest.mark.parametrize("numerics", ["exact", "bf16", "fast"])
@pytest.mark.parametrize("family", ["llama 3", "smollm 3", "phi 3, long", "gemma 3"])
def test_moved_keys_are_those_of_lower_positions(
    family: str, numerics: Numerics, tmp_path: Path
) -> None:
    """Of the first layer, where a key depends on nothing but its token and its position."""
    # Widths for which there is a compiled pass.
    changes = {"rope_parameters": long_rope(6)} if family == "phi 3, long" else {}
    build(family, tmp_path, hidden_size=96, intermediate_size=96, head_dim=16, **changes)
    checkpoint = FolderCheckpoint(tmp_path)
    decoder = _host_decoder(checkpoint, numerics, None, 1)
    assert isinstance(decoder, HostDecoder)
    shape = checkpoint.config
    dtype = decoder.kv_dtype  # type: ignore[attr-defined]
    cache = KVCache(shape.layers, shape.kv_heads, shape.head_dim, 9, BLOCK, dtype,
                    torch.device("cpu"))  # fmt: skip
    text = tuple(words(81))

    def step(first: int, end: int, blocks: tuple[int, ...], *moved: int) -> SequenceStep:
        """Tokens [first, end) of the text, as if the text began at `first` (at 0 after a move)."""
        start = end - first if moved else 0
        tokens = text[end : end + 1] if moved else text[first:end]
        segment = Segment(-1, blocks, start + len(tokens))
        owner = Prefix(0, None, tokens)
        return SequenceStep(owner, tokens, start, (segment,), False, moved, 2 * BLOCK)

    decoder.compute([step(0, 80, (0, 4, 2, 3, 1))], cache)
    decoder.compute([step(32, 80, (6, 7, 8))], cache)
    decoder.compute([step(32, 80, (2, 3, 1, 5), 2, 3, 1)], cache)
    per = cache.keys[0].view(shape.kv_heads, -1, BLOCK * shape.head_dim)
    moved, wanted = per[:, [2, 3, 1]].float(), per[:, [6, 7, 8]].float()
    assert wanted.std() > 0.1
    rounding = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(moved, wanted, rtol=rounding, atol=rounding)


def test_a_window_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    build("llama", tmp_path)
    checkpoint = FolderCheckpoint(tmp_path)
    model = LoadedModel("tiny", checkpoint.config, Decoder.load(checkpoint, "exact"),
                        Numbers(), ChatFormat)  # type: ignore[arg-type]  # fmt: skip
    with pytest.raises(ModelError, match=r"room for 656 tokens .* the model has 512 positions"):
        build_engine(model, EngineConfig(sliding_window=512))
    engine = build_engine(model, EngineConfig(sliding_window=320, kv_cache_bytes=1 << 20))
    engine.submit([1], SamplingParams(max_tokens=10**9))
