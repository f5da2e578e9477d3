"""The comparison with `exact` counts what it says it counts."""

from pathlib import Path

import pytest
import torch

from benchmarks.accuracy import PIECE, Tally, compare, pieces, read_texts
from engine.weights.load import load_vocabulary
from tests.benchmarks.tiny import load_tiny
from tests.engine.families import VOCAB


def test_a_model_agrees_with_itself_and_its_perplexity_is_that_of_transformers(
    tmp_path: Path,
) -> None:
    model, reference = load_tiny(tmp_path)
    texts = [torch.randint(VOCAB, (n,)).tolist() for n in (40, 2, 17)]
    tallies = compare({"exact": model, "again": model}, texts)
    figures = tallies["again"].figures()
    assert (figures["top_1"], figures["divergence"]) == (1.0, 0.0)
    assert figures["tokens"] == 39 + 1 + 16
    with torch.inference_mode():
        losses = [
            torch.nn.functional.cross_entropy(
                reference(torch.tensor([ids])).logits[0, :-1],
                torch.tensor(ids[1:]),
                reduction="sum",
            )
            for ids in texts
        ]
    expected = float((torch.stack(losses).sum() / 56).exp())
    assert figures["perplexity"] == pytest.approx(expected, rel=1e-3)


def test_other_first_choices_and_divergence_are_counted() -> None:
    exact = torch.tensor([[0.9, 0.1], [0.4, 0.6]]).log()
    said = torch.tensor([[0.8, 0.2], [0.7, 0.3]]).log()
    tally = Tally()
    tally.add(said, exact, torch.tensor([0, 0]))
    figures = tally.figures()
    assert figures["top_1"] == 0.5
    assert figures["sure_top_1"] == 0.5
    assert figures["perplexity"] == pytest.approx((0.8 * 0.7) ** -0.5)
    by_hand = (exact.exp() * (exact - said)).sum() / 2
    assert figures["divergence"] == pytest.approx(float(by_hand))


@pytest.mark.model
def test_the_texts_are_several_thousand_tokens(default_model_path: Path) -> None:
    model = load_vocabulary(str(default_model_path), data_dir=default_model_path.parent)
    cut = pieces(read_texts(), model.tokenizer)
    assert sum(map(len, cut)) > 5000
    assert max(map(len, cut)) == PIECE
