"""A SentencePiece vocabulary from a GGUF file cuts text as the library itself does."""

import io
import random
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.decoding.detokenize import Detokenizer, Pieces
from engine.errors import ModelError
from engine.tokenizer import Tokenizer
from tests.engine.test_tokenizer import TEXTS

Vocabulary = tuple[Any, dict[str, Any], Tokenizer]

TEXT = "the innkeeper said that they would rather have seen this other harbour then, 1492"
WORDS = TEXT.split(" ")
#: What kinds of vocabulary there are: does text begin with a space, and pieces made by hand.
KINDS = {"as llama": (True, []), "as gemma": (False, ["▁▁", "▁▁▁▁", "\n", "\n\n", "<table>"])}


@pytest.fixture(scope="module", params=KINDS)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    """The library's tokenizer, what the converter writes of it, and ours made of that."""
    spaced, by_hand = KINDS[request.param]
    chance = random.Random(0)
    lines = [" ".join(chance.choices(WORDS, k=12)) for _ in range(200)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=spaced,
        user_defined_symbols=by_hand,
        control_symbols=["<|im_start|>"],
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(theirs.vocab_size())
    kinds = [
        2 if theirs.is_unknown(index)
        else 3 if theirs.is_control(index)
        else 6 if theirs.is_byte(index)
        else 4 if theirs.id_to_piece(index) in by_hand
        else 1
        for index in ids
    ]  # fmt: skip
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [theirs.id_to_piece(index) for index in ids],
        "tokenizer.ggml.scores": [theirs.get_score(index) for index in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": spaced,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return theirs, metadata, Tokenizer.from_gguf(metadata)


ALIKE = st.lists(
    st.one_of(st.sampled_from([*WORDS, " ", "  ", "    ", "\n", "\n\n"]), st.text(max_size=5)),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(pieces=ALIKE)
def test_ids_are_the_librarys(vocabulary: Vocabulary, pieces: list[str]) -> None:
    theirs, _, ours = vocabulary
    for text in ("".join(pieces), " ".join(pieces)):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        if "▁" not in text:
            assert ours.decode(ids) == text


def test_text_cannot_spell_marks_and_frames_can(vocabulary: Vocabulary) -> None:
    theirs, _, ours = vocabulary
    start = theirs.piece_to_id("<|im_start|>")
    assert ours.control("<|im_start|>")[-1:] == [start]
    for mark in ("<|im_start|>", "</s>", "<s>", "<table>", "<0x41>", "<unk>"):
        ids = ours.encode(mark)
        assert len(ids) > 1
        assert not ours.special_ids.intersection(ids)
        assert ours.decode(ids) == mark
    assert (ours.bos_id, ours.eos_ids) == (1, {2})
    for text in TEXTS:
        assert ours.decode(ours.encode(text)) == text
    assert ours.decode(ours.encode("é")[-2:-1]) == "\ufffd"


def test_a_vocabulary_without_scores_is_refused(vocabulary: Vocabulary) -> None:
    _, metadata, _ = vocabulary
    with pytest.raises(ModelError, match="pieces, but 0 scores"):
        Tokenizer.from_gguf(metadata | {"tokenizer.ggml.scores": []})


@settings(max_examples=100, deadline=None)
@given(pieces=ALIKE)
def test_a_stream_reads_as_the_whole(vocabulary: Vocabulary, pieces: list[str]) -> None:
    """Pieces, and characters that are no pieces and come byte by byte; met before, or not."""
    *_, tokenizer = vocabulary
    ids = tokenizer.encode("".join(pieces).replace("\ufffd", ""))
    known = Pieces(tokenizer)
    for _ in range(2):
        stream = Detokenizer(known)
        assert "".join(map(stream.push, ids)) == tokenizer.decode(ids)
