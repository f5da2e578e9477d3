"""What a reply must look like, as the grammar that the engine decodes under."""

from engine.errors import EngineError
from engine.grammar import Grammar
from gameserver.http.openai.errors import bad_field
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
        raise bad_field("response_format", str(error)) from error


def structured_grammar(wanted: StructuredOutputs) -> Grammar:
    """Replies under vLLM's `structured_outputs`.

    Raises:
        ApiError: 400, there is not exactly one constraint, or it cannot be followed.
    """
    given = [name for name in wanted.__struct_fields__ if getattr(wanted, name) is not None]
    if len(given) != 1 or wanted.json_object is False:
        raise bad_field("structured_outputs", "structured_outputs needs exactly one constraint")
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
        raise bad_field("structured_outputs", str(error)) from error
