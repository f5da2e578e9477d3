"""A small model that turns sentences into vectors: near in meaning, near in space.

Mean pooling over BERT, as Sentence-BERT does it (Reimers and Gurevych 2019).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from engine.embedding.bert import Bert, BertConfig, Source
from engine.errors import InvalidRequest, ModelError
from engine.weights.fetch import SENTENCE_MODEL, Progress, fetch_model

#: Token rows of a batch, padding included. More do not make it faster, and take memory.
_ROWS = 4096


class SentenceModel:
    """Sentences in, vectors out. It may be used from several threads.

    Attributes:
        dim: numbers in a vector.
        max_tokens: what a longer text is cut to.
    """

    def __init__(self, bert: Bert, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._bert = bert
        self._tokenizer = tokenizer
        self.dim = bert.config.hidden
        self.max_tokens = min(max_tokens, bert.config.positions)
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_tokens)

    @classmethod
    def load(
        cls,
        spec: str = "default",
        *,
        data_dir: Path | str = ".cache/troupe",
        progress: Progress | None = None,
    ) -> "SentenceModel":
        """Load a model.

        Args:
            spec: "default" (all-MiniLM-L6-v2, fetched once, 91 MB), or the folder of a BERT with
                config.json, model.safetensors and tokenizer.json.
            data_dir: where what is fetched is kept.
            progress: told (stage, done, total) while it is fetched.

        Raises:
            ModelError: it cannot be found, fetched or understood; the message says what to do.
        """
        if spec == "default":
            folder = fetch_model(Path(data_dir), progress, model=SENTENCE_MODEL).parent
        else:
            folder = Path(spec).expanduser()
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            if not (folder / name).is_file():
                raise ModelError(
                    f"{folder} has no {name}: give 'default', or the folder of a BERT with "
                    "config.json, model.safetensors and tokenizer.json"
                )
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception for every kind of bad file
            raise ModelError(f"cannot read {folder / 'tokenizer.json'}: {error}") from error
        _check_pooling(folder)
        try:
            with safe_open(folder / "model.safetensors", "pt") as file:
                bert = Bert(BertConfig.from_hf(_json(folder / "config.json")), _reader(file))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"cannot read {folder / 'model.safetensors'}: {error}") from error
        longest = bert.config.positions
        if (folder / "sentence_bert_config.json").is_file():
            fields = _json(folder / "sentence_bert_config.json")
            longest = int(fields.get("max_seq_length") or longest)
        return cls(bert, tokenizer, longest)

    def encode(self, texts: Sequence[str], *, normalize: bool = True) -> npt.NDArray[np.float32]:
        """The vector of each text; what is beyond `max_tokens` of one is not read.

        Args:
            texts: any number; control tokens in them are read as the model's own.
            normalize: scale vectors to length 1, so that their product is the cosine.

        Returns:
            float32 [len(texts), dim].

        Raises:
            InvalidRequest: these are no texts.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InvalidRequest("texts must be a list of strings")
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(clean)]
        vectors = np.zeros((len(ids), self.dim), np.float32)
        for batch in _batches(ids):
            vectors[batch] = self._pooled([ids[number] for number in batch], normalize)
        return vectors

    @torch.inference_mode()
    def _pooled(self, ids: Sequence[Sequence[int]], normalize: bool) -> npt.NDArray[np.float32]:
        lengths = torch.tensor([len(text) for text in ids])
        longest = int(lengths.max())
        tokens = torch.tensor([[*text, *[0] * (longest - len(text))] for text in ids])
        present = torch.arange(longest) < lengths[:, None]
        states = self._bert.states(tokens, present)
        vectors = (states * present[:, :, None]).sum(1) / lengths[:, None]
        if normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        return vectors.numpy()


def _batches(ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Numbers of texts that are computed together: of like length, so that little is padded."""
    batch: list[int] = []
    for number in sorted(range(len(ids)), key=lambda number: len(ids[number])):
        if batch and (len(batch) + 1) * len(ids[number]) > _ROWS:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _reader(file: Any) -> Source:
    """Tensors of an open safetensors file; a whole model's names may begin with `bert.`."""
    names = set(file.keys())
    prefix = "bert." if "bert.embeddings.word_embeddings.weight" in names else ""

    def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if prefix + name not in names:
            raise ModelError(f"model.safetensors has no tensor {prefix + name!r}")
        tensor: torch.Tensor = file.get_tensor(prefix + name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{prefix + name} is {list(tensor.shape)}, the config says {list(shape)}"
            )
        return tensor.float()

    return read


def _check_pooling(folder: Path) -> None:
    """Sentence models that do not take the mean of all tokens are another kind."""
    path = folder / "1_Pooling" / "config.json"
    if path.is_file() and not _json(path).get("pooling_mode_mean_tokens", True):
        raise ModelError(f"{folder} does not pool by the mean of all tokens, which alone is known")


def _json(path: Path) -> Mapping[str, Any]:
    try:
        fields = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return fields
