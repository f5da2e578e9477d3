"""Tools: how the model is told of them, and how its calls are found in what it says.

A call is JSON between `<tool_call>` marks, the form that Hermes and Qwen models are trained on. A
reply either is text or consists of calls: it begins with the mark or it does not. Where tools are
offered the engine decodes under a grammar that says so, so what begins as a call ends as one, and
its arguments keep to their schema on any model.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.errors import EngineError
from engine.grammar import Grammar
from gameserver.http.openai.errors import bad_field
from gameserver.http.openai.schema import ChatRequest, ChosenTool, Function, Schema, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
#: Most calls in one reply: a model that never stops calling would fill its whole budget.
MOST_CALLS = 8

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools that one request may use, and must.

    Attributes:
        functions: that may be called.
        must: a reply has to consist of calls.
        several: it may hold more than one.
    """

    functions: tuple[Function, ...]
    must: bool
    several: bool

    @classmethod
    def of(cls, fields: ChatRequest) -> "Toolbox | None":
        """What a request says about tools; None if none may be called.

        Raises:
            ApiError: 400, the choice names no tool.
        """
        functions = tuple(tool.function for tool in fields.tools or ())
        choice = fields.tool_choice
        if choice == "none" or (not functions and choice in (None, "auto")):
            return None
        if not functions:
            raise bad_field("tool_choice", "tool_choice asks for a call, but there are no tools")
        names = [function.name for function in functions]
        if len(set(names)) != len(names):
            raise bad_field("tools", "two tools have the same name")
        if isinstance(choice, ChosenTool):
            chosen = tuple(f for f in functions if f.name == choice.function.name)
            if not chosen:
                raise bad_field(
                    "tool_choice", f"tool_choice names {choice.function.name}, which is no tool"
                )
            return cls(chosen, must=True, several=False)
        return cls(
            functions, must=choice == "required", several=fields.parallel_tool_calls is not False
        )

    def grammar(self, text: Schema | None) -> Grammar:
        """What a reply may be: calls or, unless they are a must, text.

        Args:
            text: schema of a reply that is no call; None leaves it free.

        Raises:
            ApiError: 400, a schema cannot be followed.
        """
        repeats = f'("\\n" call){{0,{MOST_CALLS - 1}}}' if self.several else ""
        rules = [f"calls: call {repeats}", f'call: "{OPEN}" "\\n"? one "\\n"? "{CLOSE}"']
        rules.append(f"one: {' | '.join(f'f{n}' for n in range(len(self.functions)))}")
        for number, function in enumerate(self.functions):
            # The schema stays a document of its own, so that its references keep their meaning.
            head = json.dumps(f'{{"name": "{function.name}", "arguments": ')
            rules.append(f'f{number}: {head} a{number} "}}"')
            rules.append(f"a{number}: %json {_json(_parameters(function))}")
        if self.must:
            rules.insert(0, "start: calls")
        elif text is None:
            rules[:0] = ["start: calls | TEXT |", r"TEXT: /[^<](.|\n)*/"]
        else:
            rules[:0] = ["start: calls | object", f"object: %json {_json(text)}"]
        try:
            return Grammar.lark("\n".join(rules))
        except EngineError as error:
            raise bad_field("tools", str(error)) from error


def described(functions: Sequence[Function]) -> str:
    """What the model is told about its tools: data in a system message, like any other words."""
    listed = "\n".join(
        _json(
            {
                "name": function.name,
                "description": function.description or "",
                "parameters": _parameters(function),
            }
        )
        for function in functions
    )
    return (
        f"You may call these functions:\n{listed}\n\nTo call one, reply with nothing but\n"
        f'{OPEN}\n{{"name": <function>, "arguments": {{<parameter>: <value>, ...}}}}\n{CLOSE}'
    )


def spelled(calls: Sequence[ToolCall]) -> str:
    """Earlier calls as the model would have made them.

    Raises:
        ApiError: 400, the arguments of a call are no JSON.
    """
    pieces = []
    for call in calls:
        try:
            arguments = orjson.loads(call.function.arguments or "{}")
        except orjson.JSONDecodeError:
            raise bad_field("messages", f"the arguments of call {call.id} are no JSON") from None
        body = _json({"name": call.function.name, "arguments": arguments})
        pieces.append(f"{OPEN}\n{body}\n{CLOSE}")
    return "\n".join(pieces)


@dataclass(frozen=True, slots=True)
class CallPiece:
    """Something new of call number `index`: its name at first, then text of its arguments."""

    index: int
    name: str | None
    arguments: str


class CallParser:
    """Splits a reply into text and calls while it comes in."""

    def __init__(self) -> None:
        self._buffer = ""
        self._calling: bool | None = None  # None until the beginning shows what the reply is
        self._in_call = False
        self._scan: _ObjectScan | None = None
        self.calls = 0

    def push(self, text: str) -> tuple[str, list[CallPiece]]:
        """Take in new text; return the text to show, and what is new of calls."""
        self._buffer += text
        if self._calling is None:
            if OPEN.startswith(self._buffer):  # still open what this becomes
                return "", []
            self._calling = self._buffer.startswith(OPEN)
        if not self._calling:
            shown, self._buffer = self._buffer, ""
            return shown, []
        pieces: list[CallPiece] = []
        while (piece := self._next()) is not None:
            pieces.append(piece)
        return "", pieces

    def flush(self) -> str:
        """The text held back, now that no more will come."""
        if self._calling:
            return ""
        held, self._buffer = self._buffer, ""
        return held

    def _next(self) -> CallPiece | None:
        """The next piece that the buffer holds, if it does."""
        if self._scan is not None:
            part, self._buffer = self._scan.take(self._buffer)
            if self._scan.done:
                self._scan = None
            return CallPiece(self.calls - 1, None, part) if part else None
        if not self._in_call:
            at = self._buffer.find(OPEN)
            if at < 0:
                return None
            self._buffer = self._buffer[at + len(OPEN) :]
            self._in_call = True
        match = _HEAD.match(self._buffer)
        # The character after the head is looked at too: white space may go on with the next token.
        if match is None or match.end() == len(self._buffer):
            return None
        self._buffer = self._buffer[match.end() :]
        self._in_call = False
        self._scan = _ObjectScan()
        self.calls += 1
        return CallPiece(self.calls - 1, json.loads(match[1]), "")


class _ObjectScan:
    """Finds the end of a JSON object in a text that comes piece by piece."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._quoted = self._escaped = False

    def take(self, text: str) -> tuple[str, str]:
        """Split `text` into what belongs to the object and what follows it."""
        for position, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = character == "\\"
                self._quoted = character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.done = True
                    return text[: position + 1], text[position + 1 :]
        return text, ""


def _parameters(function: Function) -> Schema:
    schema: Schema = {"type": "object", **(function.parameters or {})}
    if schema["type"] != "object":
        raise bad_field("tools", f"the parameters of {function.name} must be of type object")
    return schema


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise bad_field("tools", f"a schema cannot be written as JSON: {error}") from None
