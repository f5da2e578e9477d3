"""How likely the tokens were, in OpenAI's two forms."""

from collections.abc import Sequence

from engine.outputs import RequestOutput
from engine.tokenizer import Tokenizer
from gameserver.http.openai.answers import (
    ChatLogprobs,
    ChosenLogprob,
    CompletionLogprobs,
    TokenLogprob,
)

_CUT = "\ufffd"


class Spelling:
    """What tokens look like by themselves.

    Control tokens are spelled out, and half a character as the vocabulary spells it, so that
    tokens that differ look different.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, token: int) -> tuple[str, bool]:
        """The token's text, and whether that is all it is made of."""
        text = self._tokenizer.decode([token])
        if text and _CUT not in text:
            return text, True
        return self._tokenizer.token(token) or text, False


def chat_logprobs(spelling: Spelling, output: RequestOutput, top: int) -> ChatLogprobs | None:
    """Of the tokens of one output, with the `top` likeliest of each; None where none are."""
    entries = [
        ChosenLogprob(*_entry(spelling, token, likely[token]), _top(spelling, likely, top))
        for token, likely in zip(output.token_ids, output.logprobs or (), strict=False)
    ]
    return ChatLogprobs(entries) if entries else None


def completion_logprobs(
    spelling: Spelling, outputs: Sequence[RequestOutput], top: int, offset: int
) -> CompletionLogprobs | None:
    """The same in the form of completions; `offset` characters came before."""
    tokens: list[str] = []
    chosen: list[float] = []
    tops: list[dict[str, float]] = []
    offsets: list[int] = []
    for output in outputs:
        for token, likely in zip(output.token_ids, output.logprobs or (), strict=False):
            text, whole = spelling.text(token)
            tokens.append(text)
            chosen.append(likely[token])
            best = _likeliest(likely, top)
            tops.append({spelling.text(other)[0]: likely[other] for other in best})
            offsets.append(offset)
            offset += len(text) if whole else 0
    if not tokens:
        return None
    return CompletionLogprobs(
        tokens=tokens, token_logprobs=chosen, top_logprobs=tops, text_offset=offsets
    )


def _top(spelling: Spelling, likely: dict[int, float], top: int) -> list[TokenLogprob]:
    return [
        TokenLogprob(*_entry(spelling, token, likely[token])) for token in _likeliest(likely, top)
    ]


def _likeliest(likely: dict[int, float], top: int) -> list[int]:
    return sorted(likely, key=lambda token: (-likely[token], token))[:top]


def _entry(spelling: Spelling, token: int, logprob: float) -> tuple[str, float, list[int] | None]:
    text, whole = spelling.text(token)
    # JSON has no infinity; a token that could not be chosen is as unlikely as this.
    return text, max(logprob, -9999.0), list(text.encode()) if whole else None
