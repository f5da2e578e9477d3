"""`POST /v1/chat/completions`."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from engine.chat import Message
from engine.grammar import Grammar
from engine.outputs import RequestOutput
from gameserver.http.openai.answers import (
    CallDelta,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChosenLogprob,
    FinishReason,
    FunctionDelta,
    MadeCall,
)
from gameserver.http.openai.call import Call
from gameserver.http.openai.constraints import json_grammar, schema_of, structured_grammar
from gameserver.http.openai.errors import bad_field
from gameserver.http.openai.generation import Generation
from gameserver.http.openai.logprobs import chat_logprobs
from gameserver.http.openai.sampling import sampling_params
from gameserver.http.openai.schema import (
    AssistantMessage,
    ChatRequest,
    ChosenTool,
    DeveloperMessage,
    FunctionCall,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolMessage,
)
from gameserver.http.openai.streaming import event
from gameserver.http.openai.tools import CallParser, CallPiece, Toolbox, described, spelled


async def chat(call: Call, fields: ChatRequest) -> Response:
    """Answer a dialogue.

    Raises:
        ApiError: what is wrong with it, or that the engine cannot take it.
    """
    toolbox = Toolbox.of(fields)
    messages, prefill = _dialogue(fields, toolbox)
    engine = call.engine
    prompt = await call.encode(
        sum(len(message.content) for message in messages) + len(prefill),
        lambda: engine.chat.encode(messages, engine.tokenizer, prefill=prefill),
    )
    wanted = fields.max_completion_tokens or fields.max_tokens
    top = fields.top_logprobs or 0
    if top and not fields.logprobs:
        raise bad_field("top_logprobs", "top_logprobs needs logprobs to be true")
    grammar, asked_by = _grammar(fields, toolbox)
    params = sampling_params(
        fields,
        max_tokens=call.reply_budget(wanted, len(prompt), None, "messages"),
        logprobs=top if fields.logprobs else None,
        prompt_field="messages",
        grammar=grammar,
    )
    await call.prepare(grammar, asked_by)
    generation = Generation(engine, call.order(fields, [prompt], params, "messages"))
    reply = _Replies(call, fields, toolbox, generation)
    if fields.stream:
        return call.stream(generation, reply.events())
    return call.whole(await reply.whole())


def _dialogue(fields: ChatRequest, toolbox: Toolbox | None) -> tuple[list[Message], str]:
    """The turns as the model knows them, and the beginning of the reply."""
    messages = [Message("system", described(toolbox.functions))] if toolbox else []
    called: set[str] = set()
    for number, message in enumerate(fields.messages):
        text = _text(message.content)
        if isinstance(message, (SystemMessage, DeveloperMessage)):
            messages.append(Message("system", text))
        elif isinstance(message, AssistantMessage):
            called.update(made.id for made in message.tool_calls or ())
            text = "\n".join(filter(None, (text, spelled(message.tool_calls or ()))))
            messages.append(Message("assistant", text))
        elif isinstance(message, ToolMessage):
            if message.tool_call_id not in called:
                param, wanted = f"messages[{number}].tool_call_id", message.tool_call_id
                raise bad_field(param, f"{param}: no message before it makes a call {wanted!r}")
            messages.append(Message("user", f"<tool_response>\n{text}\n</tool_response>"))
        else:
            messages.append(Message("user", text))
    if not fields.continue_final_message:
        return messages, ""
    if messages[-1].role != "assistant":
        raise bad_field(
            "continue_final_message", "the last message must be the assistant's to be continued"
        )
    return messages[:-1], messages[-1].content


def _text(content: str | list[TextPart] | list[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _grammar(fields: ChatRequest, toolbox: Toolbox | None) -> tuple[Grammar | None, str]:
    """What the reply must look like, and the field that says so."""
    schema = schema_of(fields.response_format)
    if fields.structured_outputs is not None:
        if schema is not None or toolbox is not None:
            raise bad_field(
                "structured_outputs", "structured_outputs goes with neither tools nor a format"
            )
        return structured_grammar(fields.structured_outputs), "structured_outputs"
    if toolbox is not None:
        return toolbox.grammar(schema), "tools"
    return None if schema is None else json_grammar(schema), "response_format"


@dataclass(slots=True)
class _Choice:
    """One reply as it grows."""

    parser: CallParser | None
    begun: bool = False
    text: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)  # id, name, arguments
    logprobs: list[ChosenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None


class _Replies:
    """Turns what the engine releases into OpenAI's messages, whole or in pieces."""

    def __init__(
        self, call: Call, fields: ChatRequest, toolbox: Toolbox | None, generation: Generation
    ) -> None:
        self._call = call
        self._generation = generation
        self._named = isinstance(fields.tool_choice, ChosenTool)
        self._top = (fields.top_logprobs or 0) if fields.logprobs else None
        options = fields.stream_options
        self._with_usage = options is not None and bool(options.include_usage)
        self._choices = [
            _Choice(None if toolbox is None else CallParser()) for _ in range(generation.size)
        ]

    async def whole(self) -> ChatCompletion:
        """The answer once all choices have ended."""
        async for batch in self._generation.outputs():
            for index, output in batch:
                self._take(self._choices[index], output)
        return ChatCompletion(
            id=f"chatcmpl-{self._call.id}",
            created=self._call.created,
            model=self._call.model,
            choices=[self._finished(n, choice) for n, choice in enumerate(self._choices)],
            usage=self._generation.usage(),
        )

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer piece by piece, as server-sent events."""
        async for batch in self._generation.outputs():
            events = bytearray()
            for index, output in batch:
                choice = self._choices[index]
                for piece in self._pieces(index, choice, output):
                    events += self._event([piece])
            yield bytes(events)
        if self._with_usage:
            yield self._event([], usage=True)

    def _take(self, choice: _Choice, output: RequestOutput) -> tuple[str, list[CallPiece]]:
        """Add what was released to a choice; returns what is new in it."""
        text = output.text
        pieces: list[CallPiece] = []
        if choice.parser is not None:
            text, pieces = choice.parser.push(text)
            if output.finish is not None and output.complete:
                text += choice.parser.flush()  # else it is the mark of a call that was cut
        choice.text += text
        for piece in pieces:
            if piece.name is not None:
                choice.calls.append((f"call_{self._call.id}{piece.index}", piece.name, ""))
            identity, name, arguments = choice.calls[piece.index]
            choice.calls[piece.index] = (identity, name, arguments + piece.arguments)
        if output.finish is not None:
            choice.finish = self._finish_reason(choice, output)
        if logprobs := self._logprobs(output):
            choice.logprobs += logprobs.content
        return text, pieces

    def _finish_reason(self, choice: _Choice, output: RequestOutput) -> FinishReason:
        if output.finish == "length":
            return "length"
        return "tool_calls" if choice.calls and not self._named else "stop"

    def _logprobs(self, output: RequestOutput) -> ChatLogprobs | None:
        if self._top is None:
            return None
        return chat_logprobs(self._call.spelling, output, self._top)

    def _finished(self, index: int, choice: _Choice) -> ChatChoice:
        calls = [
            MadeCall(id=identity, function=FunctionCall(name, arguments))
            for identity, name, arguments in choice.calls
        ]
        assert choice.finish is not None
        return ChatChoice(
            index=index,
            message=ChatMessage(content=None if calls else choice.text, tool_calls=calls or UNSET),
            finish_reason=choice.finish,
            logprobs=ChatLogprobs(choice.logprobs) if self._top is not None else None,
        )

    def _pieces(self, index: int, choice: _Choice, output: RequestOutput) -> list[ChatChunkChoice]:
        """What a client is told of one output: the role at first, then text or calls, the end."""
        text, calls = self._take(choice, output)
        logprobs = self._logprobs(output)
        deltas = []
        if not choice.begun:
            choice.begun = True
            # With tools it may still become a call, and calls have no content.
            deltas.append(ChatDelta(role="assistant", content=None if choice.parser else ""))
        if text or (logprobs and not calls):
            deltas.append(ChatDelta(content=text))
        if calls:
            deltas.append(ChatDelta(tool_calls=[self._call_delta(choice, c) for c in calls]))
        chunks = [ChatChunkChoice(index=index, delta=delta) for delta in deltas]
        if logprobs and chunks:
            chunks[-1] = msgspec.structs.replace(chunks[-1], logprobs=logprobs)
        if choice.finish is not None:
            chunks.append(
                ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=choice.finish)
            )
        return chunks

    def _call_delta(self, choice: _Choice, piece: CallPiece) -> CallDelta:
        if piece.name is None:
            return CallDelta(index=piece.index, function=FunctionDelta(arguments=piece.arguments))
        return CallDelta(
            index=piece.index,
            id=choice.calls[piece.index][0],
            type="function",
            function=FunctionDelta(name=piece.name, arguments=piece.arguments),
        )

    def _event(self, choices: list[ChatChunkChoice], *, usage: bool = False) -> bytes:
        absent = None if self._with_usage else UNSET
        chunk = ChatChunk(
            id=f"chatcmpl-{self._call.id}",
            created=self._call.created,
            model=self._call.model,
            choices=choices,
            usage=self._generation.usage() if usage else absent,
        )
        return event(msgspec.json.encode(chunk))
