"""What a reply must look like, as the grammar that the engine decodes under."""

from engine.errors import EngineError
from engine.grammar import Grammar
from gameserver.http.openai.errors import ApiError, bad_field, from_engine
from gameserver.http.openai.schema import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    Schema,
    StructuredOutputs,
)

_ANY_OBJECT: Schema = {"type": "object"}


def schema_of(wanted: ResponseFormat | None) -> Schema | None:
    """The JSON schema that `response_format` asks for, or None for free text."""
    if isinstance(wanted, JsonObjectFormat):
        return _ANY_OBJECT
    if isinstance(wanted, JsonSchemaFormat):
        schema = wanted.json_schema.schema
        return _ANY_OBJECT if schema is None else schema
    return None


def json_grammar(schema: Schema) -> Grammar:
    """Replies of JSON.

    Raises:
        ApiError: 400, the schema cannot be followed.
    """
    try:
        return Grammar.json_schema(schema)
    except EngineError as error:
        raise from_engine(error, "response_format") from error


def structured_grammar(wanted: StructuredOutputs) -> Grammar:
    """Replies under vLLM's `structured_outputs`.

    Raises:
        ApiError: 400, there is not exactly one constraint, or it cannot be followed.
    """
    given = [name for name in wanted.__struct_fields__ if getattr(wanted, name)]
    if len(given) != 1:
        raise bad_field(
            "structured_outputs",
            "structured_outputs needs exactly one constraint that is not empty",
        )
    try:
        if wanted.json is not None:
            return Grammar.json_schema(wanted.json)
        if wanted.regex is not None:
            return Grammar.regex(wanted.regex)
        if wanted.choice is not None:
            return Grammar.choice(wanted.choice)
        if wanted.grammar is not None:
            return Grammar.lark(wanted.grammar)
        return Grammar.json_object()
    except EngineError as error:
        raise _blamed(error, f"structured_outputs.{given[0]}") from error


def _blamed(error: EngineError, param: str) -> ApiError:
    refusal = from_engine(error, param)
    refusal.param = param
    return refusal
