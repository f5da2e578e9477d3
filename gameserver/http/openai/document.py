"""`/openapi.json`, written from the structs that requests are decoded with."""

import functools
from typing import Any

import msgspec
import orjson

from gameserver.http.openai import answers, schema

_REF = "#/components/schemas/{name}"
#: path, method, what it does, what is sent, what comes back, whether it streams.
_OPERATIONS: tuple[tuple[str, str, str, type[Any] | None, type[Any], bool], ...] = (
    ("/v1/chat/completions", "post", "Answer a dialogue.", schema.ChatRequest,
     answers.ChatCompletion, True),
    ("/v1/completions", "post", "Continue texts.", schema.CompletionRequest,
     answers.Completion, True),
    ("/v1/embeddings", "post", "Turn texts into vectors.", schema.EmbeddingRequest,
     answers.EmbeddingList, False),
    ("/v1/models", "get", "List the models.", None, answers.ModelList, False),
    ("/v1/models/{model}", "get", "Describe a model.", None, answers.Model, False),
)  # fmt: skip
_REFUSALS = {
    "400": "A field is wrong; `param` names it. A prompt that is too long is told the counts.",
    "401": "No API key, or an unknown one.",
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not sent as JSON.",
    "429": "Too many requests wait; Retry-After says when to come again.",
    "500": "The engine failed on this request.",
    "503": "The model is loading, or the server is going away.",
}
_WITHOUT_BODY = ("401", "404", "503")


@functools.cache
def openapi_document() -> bytes:
    """The document as JSON."""
    kinds = [kind for *_, sent, received, _ in _OPERATIONS for kind in (sent, received) if kind]
    _, components = msgspec.json.schema_components(
        [*kinds, answers.ErrorBody, answers.ChatChunk], ref_template=_REF
    )
    paths: dict[str, dict[str, Any]] = {}
    for path, method, summary, sent, received, streams in _OPERATIONS:
        paths.setdefault(path, {})[method] = _operation(path, summary, sent, received, streams)
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "Troupe: OpenAI-compatible API", "version": "1"},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"key": []}, {}],
        }
    )


def _operation(
    path: str, summary: str, sent: type[Any] | None, received: type[Any], streams: bool
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _ref(received)}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    codes = _REFUSALS if sent else {code: _REFUSALS[code] for code in _WITHOUT_BODY}
    refusals = {
        code: {
            "description": text,
            "content": {"application/json": {"schema": _ref(answers.ErrorBody)}},
        }
        for code, text in codes.items()
    }
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": "The answer.", "content": content}, **refusals},
    }
    if sent is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(sent)}},
        }
    if "{" in path:
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return operation


def _ref(kind: type[Any]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}
