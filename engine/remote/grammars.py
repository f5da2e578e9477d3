"""How servers are told what a reply must look like: each kind of server has names of its own.

Which one a server understands is found out by asking for a text that no model says by chance, see
`engine.remote.probe`: many take fields they do not know, and do nothing about them.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from engine.grammar import KINDS, Grammar, Kind, options_of

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to say what a reply must look like.

    Attributes:
        name: for people.
        kinds: what can be said in it.
        fields: of a request, for a grammar of one of these.
    """

    name: str
    kinds: frozenset[Kind]
    fields: Callable[[Grammar], Fields]


def _plain(grammar: Grammar) -> Any:
    """What a grammar says, as JSON takes it."""
    match grammar.kind:
        case "json_schema":
            return json.loads(grammar.source)
        case "choice":
            return options_of(grammar)
        case _:
            return grammar.source


_VLLM: Mapping[Kind, str] = {
    "json_schema": "json",
    "regex": "regex",
    "choice": "choice",
    "lark": "grammar",
}


def _structured_outputs(grammar: Grammar) -> Fields:
    return {"structured_outputs": {_VLLM[grammar.kind]: _plain(grammar)}}


def _guided(grammar: Grammar) -> Fields:
    return {f"guided_{_VLLM[grammar.kind]}": _plain(grammar)}


def _nvext(grammar: Grammar) -> Fields:
    return {"nvext": _guided(grammar)}


def _sglang(grammar: Grammar) -> Fields:
    match grammar.kind:
        case "choice":
            return {"regex": "(" + "|".join(map(re.escape, options_of(grammar))) + ")"}
        case "lark":
            return {"ebnf": grammar.source}
        case kind:
            return {kind: grammar.source}


def _llama_cpp(grammar: Grammar) -> Fields:
    if grammar.kind == "lark":
        return {"grammar": "%llguidance {}\n" + grammar.source}
    return {"json_schema": _plain(grammar)}


def _response_format(grammar: Grammar) -> Fields:
    schema = {"name": "reply", "schema": _plain(grammar), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


#: In the order in which they are tried.
WAYS = (
    Way("structured_outputs", KINDS, _structured_outputs),  # vLLM, and this project
    Way("guided_*", KINDS, _guided),  # vLLM before
    Way("nvext", KINDS, _nvext),  # NIM
    Way("regex/ebnf/json_schema", KINDS, _sglang),  # SGLang
    Way("grammar/json_schema", frozenset({"json_schema", "lark"}), _llama_cpp),
    Way("response_format", frozenset({"json_schema"}), _response_format),  # OpenAI
)

_OBJECT = {
    "type": "object",
    "properties": {"moss": {"const": 7}},
    "required": ["moss"],
    "additionalProperties": False,
}
#: As NPCs' actions are written.
_COMPACT = json.dumps({**_OBJECT, "x-guidance": {"whitespace_flexible": False}})
#: One grammar of each kind, none of which a model follows by chance.
TRIALS: Mapping[Kind, Grammar] = MappingProxyType(
    {
        "json_schema": Grammar.json_schema(_OBJECT),
        "regex": Grammar.regex("moss-(and|or)-fern"),
        "choice": Grammar.choice(["moss-fern", "fern-moss"]),
        "lark": Grammar.lark(f'start: "[moss " %json {_COMPACT} "]"'),
    }
)
