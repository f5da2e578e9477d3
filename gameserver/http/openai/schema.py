"""What clients send. `/openapi.json` is written from these structs, so a field is declared once.

A field that is not here is refused by name: a client should not believe in what does nothing. The
few that are accepted without effect say so. Every optional field may also be null.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Text = Annotated[str, Meta(max_length=1_000_000)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Schema = dict[str, Any]


class TextPart(Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A piece of a message."""

    text: Text


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """An earlier refusal, sent back as history."""

    refusal: Text


class FunctionCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call that the model made."""

    name: str
    arguments: Annotated[str, Meta(description="JSON text.")]


class ToolCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that the model made, sent back as history."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class _Message(Struct, frozen=True, kw_only=True, tag_field="role", forbid_unknown_fields=True):
    name: Annotated[str | None, Meta(description="Accepted without effect.")] = None


class SystemMessage(_Message, frozen=True, kw_only=True, tag="system"):
    """Instructions; those of a dialogue are merged at its start."""

    content: Text | list[TextPart]


class DeveloperMessage(_Message, frozen=True, kw_only=True, tag="developer"):
    """Another name of the system message."""

    content: Text | list[TextPart]


class UserMessage(_Message, frozen=True, kw_only=True, tag="user"):
    """What a person says."""

    content: Text | list[TextPart]


class AssistantMessage(_Message, frozen=True, kw_only=True, tag="assistant"):
    """What the model said before; may be sent back just as it was received."""

    content: Text | list[TextPart | RefusalPart] | None = None
    refusal: Text | None = None
    tool_calls: list[ToolCall] | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(_Message, frozen=True, kw_only=True, tag="tool"):
    """What a call returned."""

    content: Text | list[TextPart]
    tool_call_id: str


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: Name
    description: Text | None = None
    parameters: Schema | None = None
    strict: Annotated[
        bool | None, Meta(description="Accepted without effect: calls always keep to the schema.")
    ] = None


class Tool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool of the only kind there is."""

    function: Function
    type: Literal["function"] = "function"


class ChosenFunction(Struct, frozen=True, forbid_unknown_fields=True):
    """Names a function."""

    name: str


class ChosenTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one function that must be called."""

    function: ChosenFunction
    type: Literal["function"] = "function"


class TextFormat(Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Free text."""


class JsonObjectFormat(
    Struct, frozen=True, tag_field="type", tag="json_object", forbid_unknown_fields=True
):
    """Any JSON object."""


class NamedSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON schema and its name."""

    name: Name
    schema: Schema | None = None
    description: Text | None = None
    strict: Annotated[
        bool | None, Meta(description="Accepted without effect: replies always keep to the schema.")
    ] = None


class JsonSchemaFormat(
    Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True
):
    """JSON that keeps to a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constraints of vLLM's extension of the same name; exactly one of them."""

    json: Schema | None = None
    json_object: bool | None = None
    regex: Annotated[str, Meta(min_length=1, max_length=20_000)] | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=1000)] | None = None
    grammar: (
        Annotated[str, Meta(min_length=1, max_length=100_000, description="In Lark's notation.")]
        | None
    ) = None


class StreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a stream looks."""

    include_usage: Annotated[
        bool | None, Meta(description="End with a chunk that has no choices and the token counts.")
    ] = None
    include_obfuscation: Annotated[
        bool | None, Meta(description="Accepted without effect: nothing is padded.")
    ] = None


class _Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of every request; the first is optional because there is only one model."""

    model: Annotated[str | None, Meta(description="As /v1/models lists it.")] = None
    user: Annotated[str | None, Meta(description="Accepted without effect.")] = None


class _Sampling(_Request, frozen=True, kw_only=True):
    """Fields that chat and completions share."""

    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: (
        Annotated[str, Meta(min_length=1, max_length=1000)]
        | Annotated[list[Annotated[str, Meta(min_length=1, max_length=1000)]], Meta(max_length=16)]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Names that vLLM gave to what OpenAI does not have.
    top_k: (
        Annotated[int, Meta(ge=-1, le=2**31 - 1, description="0 and -1 keep every token.")] | None
    ) = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    bad_words: (
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=1000)]], Meta(max_length=256)]
        | None
    ) = None
    structured_outputs: StructuredOutputs | None = None
    priority: (
        Annotated[
            int,
            Meta(
                ge=-16, le=16, description="Lower is served earlier; 0 is the priority of players."
            ),
        ]
        | None
    ) = None
    cache_salt: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=1024,
                description="Only requests of equal salt share cached prompts.",
            ),
        ]
        | None
    ) = None


class ChatRequest(_Sampling, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: Annotated[
        bool | None,
        Meta(description="Go on with the last message, which must be the assistant's."),
    ] = None
    modalities: list[Literal["text"]] | None = None
    metadata: Annotated[dict[str, str] | None, Meta(description="Accepted without effect.")] = None
    service_tier: Annotated[
        Literal["auto", "default"] | None, Meta(description="Accepted without effect.")
    ] = None
    safety_identifier: Annotated[str | None, Meta(description="Accepted without effect.")] = None
    prompt_cache_key: Annotated[
        str | None, Meta(description="Accepted without effect: caching needs no hint.")
    ] = None


class CompletionRequest(_Sampling, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Annotated[
        Text | Annotated[list[Text | int | list[int]], Meta(min_length=1)],
        Meta(description="Text, texts, token ids, or lists of token ids."),
    ]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: Annotated[
        bool | None, Meta(description="Begin with the prompt. Not together with logprobs.")
    ] = None


class EmbeddingRequest(_Request, frozen=True, kw_only=True):
    """`POST /v1/embeddings`."""

    input: Annotated[
        Text | Annotated[list[Text | int | list[int]], Meta(min_length=1, max_length=2048)],
        Meta(description="Text, texts, token ids, or lists of token ids."),
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: (
        Annotated[int, Meta(ge=1, description="Keep the first so many and normalise again.")] | None
    ) = None
