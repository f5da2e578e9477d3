"""The compiled decoder: close to transformers; a row depends on nothing but its history."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.cpu.native.vectors import has

if not has("avx512vnni"):
    pytest.skip("the processor has no AVX-512 VNNI", allow_module_level=True)

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import ModelError
from engine.kv.cache import KVCache
from engine.native.decoder import NativeDecoder, NativeNumerics
from engine.plan import Segment, SequenceStep
from engine.weights.load import LoadedModel
from engine.weights.safetensors import FolderCheckpoint
from tests.engine.families import VOCAB, build

FAMILIES = (
    "llama",
    "llama 3",
    "llama, yarn",
    "mistral",
    "qwen 2",
    "qwen 2, late windows",
    "qwen 3",
    "smollm 3",
    "phi 3",
)
BLOCK = 16


#: How close the logits of tiny random models stay on average.
CLOSE: dict[NativeNumerics, float] = {"bf16": 0.99, "fast": 0.95, "int4": 0.95}


def load(
    family: str,
    folder: Path,
    numerics: NativeNumerics = "fast",
    threads: int | None = 2,
) -> tuple[NativeDecoder, Any]:
    reference = build(family, folder, head_dim=16)
    if numerics == "int4":  # as in a file whose weights have 4 bits already
        round_to_nibbles(reference)
        reference.save_pretrained(folder)
    checkpoint = FolderCheckpoint(folder)
    assert NativeDecoder.refuses(checkpoint, numerics) == ""
    decoder = NativeDecoder.load(checkpoint, numerics, threads=threads)
    assert checkpoint.unread() == []
    return decoder, reference


@torch.no_grad()
def round_to_nibbles(model: torch.nn.Module) -> None:
    """Give each 32 inputs of a layer's projections 16 values."""
    for name, parameter in model.named_parameters():
        if name.endswith("proj.weight"):
            for group in parameter.split(32, dim=1):
                low, high = group.amin(1, keepdim=True), group.amax(1, keepdim=True)
                low, step = low.half().float(), ((high - low.half().float()) / 15).half().float()
                group.copy_(((group - low) / step).round() * step + low)


@dataclass
class Piece:
    """Tokens that several sequences may have in common, and the blocks they lie in."""

    number: int
    tokens: list[int]
    blocks: list[int]


@dataclass
class Talk:
    """A sequence: shared pieces, then its own tokens."""

    shared: list[Piece]
    tokens: list[int]
    blocks: list[int]
    done: int = 0
    seen: dict[int, torch.Tensor] = field(default_factory=dict)


class Stage:
    """Feeds a decoder sequences in whatever pieces a test asks for."""

    def __init__(self, decoder: NativeDecoder, seed: int = 0, block_size: int = BLOCK) -> None:
        shape = decoder.config
        self.decoder, self.size = decoder, block_size
        blocks = 256 * BLOCK // block_size
        self.cache = KVCache(
            shape.layers,
            shape.kv_heads,
            shape.head_dim,
            blocks,
            block_size,
            decoder.kv_dtype,
            torch.device("cpu"),
        )
        self.free = list(range(blocks))
        random.Random(seed).shuffle(self.free)

    def take(self, tokens: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-tokens // self.size))]

    def piece(self, number: int, tokens: Sequence[int], shared: list[Piece]) -> Piece:
        """Compute a shared piece."""
        piece = Piece(number, list(tokens), self.take(len(tokens)))
        self.decoder.compute([self._share(shared, piece, 0, len(tokens), False)], self.cache)
        return piece

    def talk(self, shared: list[Piece], tokens: Sequence[int]) -> Talk:
        return Talk(shared, list(tokens), self.take(len(tokens)))

    def step(self, *shares: tuple[Talk, int]) -> None:
        """Advance each talk by a number of tokens; the last one's logits are kept in `seen`."""
        steps = []
        for talk, count in shares:
            own = Piece(-1, talk.tokens, talk.blocks)
            steps.append(self._share(talk.shared, own, talk.done, talk.done + count, True))
            talk.done += count
        logits = self.decoder.compute(steps, self.cache)
        for (talk, _), row in zip(shares, logits, strict=True):
            talk.seen[talk.done] = row.clone()

    def _share(
        self, shared: list[Piece], own: Piece, start: int, end: int, sample: bool
    ) -> SequenceStep:
        segments = [Segment(p.number, tuple(p.blocks), len(p.tokens)) for p in shared]
        used = own.blocks[: -(-end // self.size)]
        base = sum(len(piece.tokens) for piece in shared)
        return SequenceStep(
            owner=None,  # type: ignore[arg-type]
            tokens=tuple(own.tokens[start:end]),
            start=base + start,
            segments=(*segments, Segment(own.number, tuple(used), end)),
            sample=sample,
        )


def words(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


@pytest.mark.parametrize("numerics", CLOSE)
@pytest.mark.parametrize("family", FAMILIES)
def test_close_to_transformers(family: str, numerics: NativeNumerics, tmp_path: Path) -> None:
    decoder, reference = load(family, tmp_path, numerics)
    text = words(200, 1)
    with torch.inference_mode():
        wanted = reference(torch.tensor([text])).logits[0]
    stage = Stage(decoder)
    talk = stage.talk([], text)
    for count in (70, 1, 40, *[1] * 89):
        stage.step((talk, count))
    found = torch.stack(list(talk.seen.values()))
    places = torch.tensor(list(talk.seen)) - 1
    closeness = torch.nn.functional.cosine_similarity(found, wanted[places], dim=-1)
    assert closeness.mean() > CLOSE[numerics]


@pytest.fixture(scope="module", params=[("qwen 3", n) for n in CLOSE] + [("mistral", "fast")])
def decoder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> NativeDecoder:
    family, numerics = request.param
    return load(family, tmp_path_factory.mktemp("tiny"), numerics)[0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block_size", [16, 48])
def test_no_bit_depends_on_company_cuts_or_places(
    decoder: NativeDecoder, seed: int, block_size: int
) -> None:
    """Alone and in few steps, against random steps beside others in scattered blocks."""
    chance = random.Random(seed)
    scene, personas = words(chance.randint(1, 150), seed), [words(n, n) for n in (33, 16, 1)]
    lines = [words(chance.choice((1, 2, 17, 64, 90)), 100 + n) for n in range(8)]

    def open_pieces(stage: Stage) -> list[list[Piece]]:
        root = stage.piece(0, scene, [])
        leaves = [stage.piece(1 + n, text, [root]) for n, text in enumerate(personas)]
        return [[], [root], *[[root, leaf] for leaf in leaves]]

    alone = Stage(decoder, seed)
    chains = open_pieces(alone)
    expected = []
    for number, line in enumerate(lines):
        talk = alone.talk(chains[number % len(chains)], line)
        for _ in line:
            alone.step((talk, 1))
        expected.append(talk.seen)
    stage = Stage(decoder, seed + 1, block_size)
    chains = open_pieces(stage)
    talks = [stage.talk(chains[n % len(chains)], line) for n, line in enumerate(lines)]
    while left := [talk for talk in talks if talk.done < len(talk.tokens)]:
        chosen = chance.sample(left, chance.randint(1, len(left)))
        stage.step(*[(talk, chance.randint(1, len(talk.tokens) - talk.done)) for talk in chosen])
    for talk, rows in zip(talks, expected, strict=True):
        for place, logits in talk.seen.items():
            assert torch.equal(logits, rows[place])


def test_no_bit_depends_on_the_number_of_threads(tmp_path: Path) -> None:
    results = []
    text = words(130, 5)
    for threads in (1, 2, 3):
        decoder, _ = load("llama", tmp_path, threads=threads)
        stage = Stage(decoder)
        talk = stage.talk([], text)
        stage.step((talk, 100))
        stage.step((talk, 30))
        results.append(torch.stack(list(talk.seen.values())))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_step_without_samples_gives_no_logits(decoder: NativeDecoder) -> None:
    stage = Stage(decoder)
    stage.piece(0, words(20, 1), [])
    talk = stage.talk([], words(3, 2))
    stage.step((talk, 3))
    assert talk.seen[3].isfinite().all()


def test_what_is_not_computed_this_way_is_named(tmp_path: Path) -> None:
    build("gemma 2", tmp_path)
    assert "score_cap" in NativeDecoder.refuses(FolderCheckpoint(tmp_path), "fast")
    build("llama, biases", tmp_path, head_dim=16)
    assert "bias" in NativeDecoder.refuses(FolderCheckpoint(tmp_path), "fast")


def test_parts_add_up(decoder: NativeDecoder) -> None:
    stage = Stage(decoder)
    stage.step((stage.talk([], words(9, 1)), 9))
    parts = decoder.parts()
    assert parts["products"] > 0
    assert min(parts.values()) >= 0
    assert 0 < sum(parts.values()) < 60


def test_blocks_of_another_size_are_refused_by_name(tmp_path: Path) -> None:
    decoder, _ = load("llama", tmp_path)
    model = LoadedModel("tiny", decoder.config, decoder, None, None)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="multiple of 16"):
        build_engine(model, EngineConfig(block_size=8, device="cpu"))
