"""The sentence model's vectors are those of transformers, whatever they are batched with."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from engine.embedding.sentence import SentenceModel
from engine.errors import InvalidRequest, ModelError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", "##a", "##b", "##ing", "the", "bell"]
TEXTS = ["the bell", "", "a", "the aab bell aing " * 9, "ä A?", "j" * 300, "bell " * 100]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny random BERT with a WordPiece vocabulary."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(tmp_path)
    backend = Tokenizer(models.WordPiece({w: n for n, w in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.enable_padding(length=20)  # as stored with the published model; must not matter
    backend.enable_truncation(8)
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def by_transformers(folder: Path, texts: list[str], longest: int) -> np.ndarray:
    """Mean of the last hidden state, one text at a time."""
    model = BertModel.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    with torch.inference_mode():
        vectors = [
            model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].mean(0).numpy()
            for text in texts
        ]
    return np.stack(vectors)


def test_vectors_are_those_of_transformers(folder: Path) -> None:
    model = SentenceModel.load(str(folder))
    found = model.encode(TEXTS, normalize=False)
    assert (found.dtype, found.shape) == (np.float32, (len(TEXTS), model.dim))
    np.testing.assert_allclose(found, by_transformers(folder, TEXTS, 64), atol=1e-5)
    lengths = np.linalg.norm(model.encode(TEXTS), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)


def test_neither_batch_mates_nor_order_matter(folder: Path) -> None:
    model = SentenceModel.load(str(folder))
    many = [f"the {'a' * n} bell" for n in range(40)] * 9
    together = model.encode(many)
    for number in (0, 7, 39, 200):
        np.testing.assert_allclose(together[number], model.encode([many[number]])[0], atol=1e-5)
    np.testing.assert_allclose(model.encode(many[::-1])[::-1], together, atol=1e-5)


def test_the_folder_may_say_how_long_a_text_is(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 10}')
    model = SentenceModel.load(str(folder))
    assert model.max_tokens == 10
    found = model.encode(TEXTS, normalize=False)
    np.testing.assert_allclose(found, by_transformers(folder, TEXTS, 10), atol=1e-5)


def test_nothing_is_a_matrix_without_rows(folder: Path) -> None:
    model = SentenceModel.load(str(folder))
    assert model.encode([]).shape == (0, model.dim)
    assert model.encode(["\ud800"]).shape == (1, model.dim)


@pytest.mark.parametrize("texts", ["text", [b"text"], [None], [["a"]]])
def test_what_are_no_texts_is_refused(folder: Path, texts: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="list of strings"):
        SentenceModel.load(str(folder)).encode(texts)


def edit(**changes: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return apply


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "cannot read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "JSON object"),
        (edit(hidden_size=47), "heads"),
        (edit(intermediate_size=95), "config says"),
        (edit(num_hidden_layers=3), "no tensor"),
        (edit(model_type="roberta"), "roberta"),
        (edit(hidden_act="relu"), "relu"),
    ],
)
def test_a_spoilt_folder_is_named(
    folder: Path, spoil: Callable[[Path], None], problem: str
) -> None:
    spoil(folder)
    with pytest.raises(ModelError, match=problem):
        SentenceModel.load(str(folder))


def test_other_ways_of_pooling_are_refused(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": false}')
    with pytest.raises(ModelError, match="mean"):
        SentenceModel.load(str(folder))


@pytest.mark.model
def test_the_default_finds_what_is_meant(cache_dir: Path) -> None:
    """Published vectors of all-MiniLM-L6-v2, and what a memory would be asked."""
    model = SentenceModel.load(data_dir=cache_dir)
    texts = [
        "The miller's daughter saw lights at the old mill.",
        "Eels cost two coppers at the harbour.",
        "It rained for three days.",
    ]
    folder = cache_dir / "models" / "all-MiniLM-L6-v2"
    expected = by_transformers(folder, texts, model.max_tokens)
    np.testing.assert_allclose(model.encode(texts, normalize=False), expected, atol=1e-5)
    (question,) = model.encode(["What is the price of fish?"])
    assert int((model.encode(texts) @ question).argmax()) == 1
    assert (model.dim, model.max_tokens) == (384, 256)
