"""Every family's logits equal transformers', however the work is cut."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models.decoder import Decoder, Numerics
from engine.weights.safetensors import FolderCheckpoint
from tests.engine.families import FAMILIES, VOCAB, build
from tests.engine.paged import PagedLoop

LENGTH = 300
#: Numerics that round, and how close the logits of tiny random models stay on average.
ROUNDED: dict[Numerics, float] = {"bf16": 0.985, "fast": 0.95}


def words(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return found


def loop_of(folder: Path, numerics: Numerics = "exact", length: int | None = None) -> PagedLoop:
    checkpoint = FolderCheckpoint(folder)
    checkpoint.config = checkpoint.config.within(length)
    loop = PagedLoop(Decoder.load(checkpoint, numerics))
    assert checkpoint.unread() == []
    return loop


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    """In one piece, in chunks, and token by token over scattered blocks; windows long passed."""
    reference = build(family, tmp_path)
    text = words(LENGTH)
    wanted = logits_of(reference, text)
    assert wanted.std() > 0.2
    loop = loop_of(tmp_path)
    whole = loop.prefill(loop.open(text), chunk=LENGTH)
    torch.testing.assert_close(whole, wanted, rtol=1e-4, atol=1e-4)
    sequence = loop.open(text)
    pieces = [loop.step((sequence, count)) for count in (70, 1, 129, 60)]
    pieces += [loop.step((sequence, 1)) for _ in range(LENGTH - 260)]
    assert torch.equal(torch.cat(pieces), whole), "the cut changes no bit"


@pytest.mark.parametrize("numerics", ROUNDED)
@pytest.mark.parametrize("family", FAMILIES)
def test_rounded_numerics_stay_close(family: str, numerics: Numerics, tmp_path: Path) -> None:
    reference = build(family, tmp_path)
    text = words(LENGTH)
    wanted = logits_of(reference, text)
    loop = loop_of(tmp_path, numerics)
    sequence = loop.open(text)
    pieces = [loop.step((sequence, count)) for count in (170, 1, 99)]
    pieces += [loop.step((sequence, 1)) for _ in range(LENGTH - 270)]
    closeness = torch.nn.functional.cosine_similarity(torch.cat(pieces), wanted, dim=-1)
    assert closeness.mean() > ROUNDED[numerics]


def test_long_rope_has_frequencies_for_those_who_stay_short(tmp_path: Path) -> None:
    reference = build("phi 3, long", tmp_path)
    text = words(60)
    loop = loop_of(tmp_path, length=64)
    found = loop.prefill(loop.open(text), chunk=25)
    torch.testing.assert_close(found, logits_of(reference, text), rtol=1e-4, atol=1e-4)
