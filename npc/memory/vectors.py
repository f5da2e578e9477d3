"""Texts as vectors, near each other if they speak of the same.

A sentence model is best. Without one, hashing finds at least what shares words. The served model's
own hidden states do worse than hashing (decision 0021), and cost steps of the engine.
"""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

_WORD = re.compile(r"\w+")
_SENTENCE_FOLDER = Path("models") / "all-MiniLM-L6-v2"


class Embedder(Protocol):
    """Makes vectors. Blocks, and may be used from several threads."""

    @property
    def name(self) -> str:
        """Vectors of different names cannot be compared."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """float32 [len(texts), dim], each of length 1 or, for a text that says nothing, 0."""


class HashingVectors:
    """Words and their letter triples, each counted in a place that its hash gives (Weinberger et
    al. 2009). Exact words find each other in any language, and other forms of a word nearly do.
    """

    #: Enough that a line's features rarely meet; a vector takes 2 kB.
    DIM = 512

    name = "hashing-1"

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`."""
        vectors = np.zeros((len(texts), self.DIM), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in _WORD.findall(text):
                self._count(row, word)
            row /= max(float(np.linalg.norm(row)), 1e-9)
        return vectors

    def _count(self, row: Vectors, word: str) -> None:
        # Short words are glue in most languages that have spaces, unless they are names.
        weight = 1.0 if len(word) > 3 or (len(word) > 2 and word[0].isupper()) else 0.2
        folded = word.casefold()
        folded = folded.rstrip("s") or folded
        marked = f"<{folded}>"
        triples = [marked[at : at + 3] for at in range(len(folded))]
        self._add(row, f"word {folded}", weight)
        for triple in triples:
            self._add(row, triple, 0.4 * weight / len(triples) ** 0.5)

    def _add(self, row: Vectors, feature: str, weight: float) -> None:
        code = zlib.crc32(feature.encode("utf-8", "replace"))
        row[code % self.DIM] += weight if code & 0x80000000 else -weight


class SentenceVectors:
    """Vectors of the sentence model."""

    name = "all-MiniLM-L6-v2"

    def __init__(self, data_dir: Path) -> None:
        """Load it; `ModelError` if it is damaged. Fetches nothing that lies there already."""
        from engine.embedding.sentence import SentenceModel  # takes torch with it

        self._model = SentenceModel.load(data_dir=data_dir)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`."""
        return self._model.encode(texts)


def at_hand(data_dir: Path) -> bool:
    """Whether the sentence model was fetched already."""
    return (data_dir / _SENTENCE_FOLDER / "model.safetensors").is_file()
