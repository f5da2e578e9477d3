"""Text to token ids and back. Text is data: nothing a player types becomes a control token."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from engine.errors import ModelError
from engine.pieces import SPACE, backend_from_pieces

#: GGUF token types (llama.cpp's enumeration).
_CONTROL, _USER_DEFINED = 3, 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

#: How a byte-level vocabulary cuts text before merging, by `tokenizer.ggml.pre`. A pattern stands
#: for a split; "digits" for GPT-2's split with every digit alone, "gpt2" for GPT-2's own.
_CUTS = {
    "default": "gpt2",
    "gpt-2": "gpt2",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


class Tokenizer:
    """Encodes and decodes with one vocabulary.

    Attributes:
        vocab_size: ids are below this.
        eos_ids: tokens that end a reply.
        bos_id: token that the model's file calls the beginning of a sequence, if any.
        opening: what the model was trained to see before any text: BOS, or nothing.
        special_ids: control tokens; `encode` never yields one, `decode` shows none.
        concatenates: see `engine.decoding.detokenize.Decodes`.
    """

    def __init__(
        self, backend: Backend, *, eos_ids: Iterable[int], bos_id: int | None, vocab_size: int = 0
    ) -> None:
        added = backend.get_added_tokens_decoder()
        self._control = backend
        self._text = _without_marks(backend)
        self.vocab_size = max(vocab_size, backend.get_vocab_size(with_added_tokens=True))
        self.eos_ids = frozenset(eos_ids)
        self.bos_id = bos_id
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.opening = _opening(backend)
        self.concatenates = backend.decoder is not None and _concatenates(
            json.loads(backend.decoder.__getstate__())
        )

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as plain text: `<|im_start|>` becomes ordinary tokens, no BOS or EOS is
        added, a lone surrogate becomes a question mark.
        """
        clean = text.encode("utf-8", "replace").decode("utf-8")
        # As a batch, because other threads of Python go on meanwhile; alone they would stand still.
        return self._text.encode_batch_fast([clean], add_special_tokens=False)[0].ids

    def prompt(self, text: str) -> list[int]:
        """Ids of a whole prompt in plain text: as `encode`, behind the model's `opening`."""
        return [*self.opening, *self.encode(text)]

    def control(self, text: str) -> list[int]:
        """Ids of a piece of the chat template, in which control tokens are recognised. Never for
        text that somebody wrote.
        """
        return self._control.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without control tokens. A character cut at either end is U+FFFD."""
        return self._control.decode(list(ids), skip_special_tokens=True)

    def spell(self, ids: Sequence[int]) -> str:
        """Text of `ids` with control tokens written out: what the model reads, for people."""
        return self._control.decode(list(ids), skip_special_tokens=False)

    def token(self, index: int | None) -> str:
        """How the vocabulary spells a token; "" for None and for ids it does not have."""
        return "" if index is None else self._control.id_to_token(index) or ""

    def serialized(self) -> str:
        """The whole vocabulary as the text of a `tokenizer.json`."""
        return self._control.to_str()

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer described by a GGUF file's metadata.

        Raises:
            ModelError: it is of a kind this cannot rebuild.
        """
        kind = metadata.get("tokenizer.ggml.model")
        if kind == "llama":
            backend = backend_from_pieces(metadata)
        elif kind == "gpt2":
            backend = _byte_level(metadata)
        else:
            raise ModelError(
                f"the GGUF file's tokenizer is of kind {kind!r}, only 'llama' (SentencePiece) and "
                "'gpt2' (byte-level BPE) can be rebuilt from GGUF; use the model's folder with "
                "tokenizer.json and safetensors"
            )
        ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        bos = metadata.get("tokenizer.ggml.bos_token_id")
        tokenizer = cls(
            backend,
            eos_ids=[int(index) for index in ends if index is not None],
            bos_id=None if bos is None else int(bos),
            vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        )
        if bos is not None and metadata.get("tokenizer.ggml.add_bos_token"):
            tokenizer.opening = (int(bos),)
        return tokenizer

    @classmethod
    def from_folder(
        cls, folder: Path, *, eos_ids: Iterable[int], bos_id: int | None, vocab_size: int = 0
    ) -> "Tokenizer":
        """The tokenizer of a Hugging Face folder (`tokenizer.json`).

        Raises:
            ModelError: the file is missing or unreadable.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"{folder} has no tokenizer.json; save the tokenizer there in its fast form "
                "(transformers: AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER))"
            )
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception for every kind of bad file
            raise ModelError(f"cannot read {path}: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        return cls(backend, eos_ids=eos_ids, bos_id=bos_id, vocab_size=vocab_size)


def _concatenates(decoder: Mapping[str, Any]) -> bool:
    """Whether a decoder looks at each token alone, but for bytes and the beginning of a text."""
    match decoder["type"]:
        case "Sequence":
            return all(map(_concatenates, decoder["decoders"]))
        case "Replace":
            return len(decoder["pattern"].get("String", "")) == 1
        case "Strip":
            return not decoder["stop"]
        case kind:
            return kind in ("ByteLevel", "ByteFallback", "Fuse", "Metaspace")


def _opening(backend: Backend) -> tuple[int, ...]:
    """What the tokenizer's own post-processor puts before a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return tuple(whole[:start])
    return ()


def _byte_level(metadata: Mapping[str, Any]) -> Backend:
    """The tokenizer of a vocabulary whose letters are bytes."""
    cut = str(metadata.get("tokenizer.ggml.pre", "default"))
    if cut not in _CUTS:
        raise ModelError(
            f"the GGUF file cuts text the way {cut!r} does, known are {', '.join(_CUTS)}; use "
            "the model's folder with tokenizer.json and safetensors"
        )
    spellings: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    backend = Backend(
        models.BPE(
            vocab={spelling: index for index, spelling in enumerate(spellings)},
            merges=merges,
            # Llama 3 takes a piece that is a token as it stands, whatever the merges say.
            ignore_merges=_CUTS[cut] is _LLAMA3,
        )
    )
    backend.pre_tokenizer = _pre_tokenizer(_CUTS[cut])
    backend.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", ())
    for special, wanted in ((True, _CONTROL), (False, _USER_DEFINED)):
        marks = [
            AddedToken(spelling, special=special, normalized=False)
            for spelling, kind in zip(spellings, types, strict=False)
            if kind == wanted
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(marks)
    return backend


def _pre_tokenizer(cut: str) -> pre_tokenizers.PreTokenizer:
    if cut == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if cut == "digits":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(cut), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _without_marks(backend: Backend) -> Backend:
    """A twin that knows no added tokens, so no text can spell one.

    Runs of white space stay: some vocabularies keep those as added tokens, and they mean only
    themselves. A mark that is also a word of the model loses that place, or a vocabulary that takes
    whole pieces without merging could still yield it.
    """
    state = json.loads(backend.to_str())
    added = {mark["content"] for mark in state["added_tokens"]}
    marks = {mark for mark in added if not mark.replace(SPACE, " ").isspace()}
    state["added_tokens"] = [m for m in state["added_tokens"] if m["content"] not in marks]
    # The post-processor adds BOS and EOS, refers to tokens that are gone, and is never asked for.
    state["post_processor"] = None
    model = state["model"]
    keep = {model.get("unk_token")}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {
            spelling: index
            for spelling, index in model["vocab"].items()
            if spelling not in marks or spelling in keep
        }
        if "merges" in model:
            model["merges"] = [
                pair for pair in model["merges"] if not marks.intersection((*pair, "".join(pair)))
            ]
    return Backend.from_str(json.dumps(state))
