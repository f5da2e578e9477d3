"""From OpenAI's and vLLM's names of parameters to ours."""

from engine.errors import EngineError
from engine.grammar import Grammar
from engine.params import SamplingParams
from gameserver.http.openai.errors import bad_field, from_engine
from gameserver.http.openai.schema import ChatRequest, CompletionRequest

#: Fields that mean the same there and here, and are passed on if they were given.
_SAME = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
)


def sampling_params(
    fields: ChatRequest | CompletionRequest,
    *,
    max_tokens: int,
    logprobs: int | None,
    grammar: Grammar | None,
    prompt_field: str,
) -> SamplingParams:
    """The sampling of each choice of a request.

    Args:
        max_tokens: of the reply.
        logprobs: how many to report beside the chosen token's; None reports nothing.
        grammar: what it must look like.
        prompt_field: to blame when nothing else can be.

    Raises:
        ApiError: 400, a parameter is out of range.
    """
    given = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    stop = fields.stop or ()
    try:
        return SamplingParams(
            **given,
            max_tokens=max_tokens,
            top_k=max(fields.top_k or 0, 0),
            seed=None if fields.seed is None else fields.seed % 2**63,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            bad_words=tuple(fields.bad_words or ()),
            logit_bias=_biases(fields.logit_bias or {}),
            logprobs=logprobs,
            grammar=grammar,
        )
    except EngineError as error:
        raise from_engine(error, prompt_field) from error


def _biases(given: dict[str, float]) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError:
        raise bad_field("logit_bias", "logit_bias: the keys must be token ids") from None
