"""Vocabularies of SentencePiece, as GGUF files keep them (Llama 2, Mistral, Phi-3, Gemma)."""

from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from engine.errors import ModelError

#: What stands for a space inside a piece.
SPACE = "▁"
#: Token types (llama.cpp's enumeration).
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


def backend_from_pieces(metadata: Mapping[str, Any]) -> Backend:
    """A tokenizer that cuts text as SentencePiece does with this vocabulary.

    SentencePiece joins, again and again, the two neighbours that make the piece of the highest
    score. Merges in that order are the same; what no piece spells falls back to its bytes.

    Raises:
        ModelError: the vocabulary has no scores.
    """
    pieces: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(pieces))
    scores: list[float] = metadata.get("tokenizer.ggml.scores", [])
    if len(scores) != len(pieces) or len(types) != len(pieces):
        raise ModelError(
            f"the GGUF file's vocabulary has {len(pieces)} pieces, but {len(scores)} scores and "
            f"{len(types)} types"
        )
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    unknown = next((p for p, kind in zip(pieces, types, strict=True) if kind == _UNKNOWN), None)
    normal = {p: s for p, s, kind in zip(pieces, scores, types, strict=True) if kind == _NORMAL}
    backend = Backend(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(normal),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaced = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    # The first space is not doubled in front of nothing; `Prepend` leaves an empty text alone.
    before = [normalizers.Prepend(SPACE)] if spaced else []
    backend.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    after = [decoders.Strip(" ", 1, 0)] if spaced else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    backend.add_special_tokens(_marks(pieces, types, _CONTROL, normalized=False))
    # Found before anything is joined, but where spaces are already what they are in pieces.
    backend.add_tokens(_marks(pieces, types, _USER_DEFINED, normalized=True))
    return backend


def _marks(
    pieces: Iterable[str], types: Iterable[int], wanted: int, *, normalized: bool
) -> list[AddedToken]:
    return [
        AddedToken(piece, special=wanted == _CONTROL, normalized=normalized)
        for piece, kind in zip(pieces, types, strict=True)
        if kind == wanted
    ]


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, the best third first."""
    found = [
        (-score, piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return [(left, right) for _, left, right in sorted(found)]
