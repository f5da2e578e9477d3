"""What clients are sent, in OpenAI's words. Fields that are UNSET are left out."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gameserver.http.openai.schema import FunctionCall

FinishReason = Literal["stop", "length", "tool_calls"]


class CachedTokens(Struct, frozen=True):
    """How much of the prompt did not have to be computed."""

    cached_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    """The bill; a prompt with several choices counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TokenLogprob(Struct, frozen=True):
    """A token and how likely it was; `bytes` is null where it is no whole text by itself."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenLogprob(Struct, frozen=True):
    """The token that was chosen, and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Struct, frozen=True):
    """Of the tokens of a reply."""

    content: list[ChosenLogprob]
    refusal: None = None


class MadeCall(Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(Struct, frozen=True, kw_only=True):
    """A whole reply."""

    content: str | None
    tool_calls: list[MadeCall] | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One reply of several."""

    index: int
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """The answer of chat/completions."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class FunctionDelta(Struct, frozen=True, kw_only=True):
    """The name comes first, then pieces of the arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class CallDelta(Struct, frozen=True, kw_only=True):
    """A piece of call number `index`; id and type come with the first."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct, frozen=True, kw_only=True):
    """What is new in a reply."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    """A piece of one reply."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    """An event of a streamed chat/completions."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    """Of the tokens of a text, in the older form: lists side by side."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One text of several, or a piece of it."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: CompletionLogprobs | None = None


class Completion(Struct, frozen=True, kw_only=True):
    """The answer of completions, and, without usage, an event of its stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    object: Literal["text_completion"] = "text_completion"


class Embedding(Struct, frozen=True, kw_only=True):
    """One vector: numbers, or little-endian float32 in base64."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(Struct, frozen=True, kw_only=True):
    """Token counts of embeddings."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, frozen=True, kw_only=True):
    """The answer of embeddings."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class Model(Struct, frozen=True, kw_only=True):
    """A model that is served; `max_model_len` as vLLM reports it."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "troupe"
    object: Literal["model"] = "model"


class ModelList(Struct, frozen=True, kw_only=True):
    """The answer of models."""

    data: list[Model]
    object: Literal["list"] = "list"


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """What is wrong, and with which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True, kw_only=True):
    """Every answer that is not a success."""

    error: ErrorDetail
