"""`POST /v1/completions`."""

from collections.abc import AsyncGenerator
from typing import cast

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from engine.outputs import RequestOutput
from gameserver.http.openai.answers import Completion, CompletionChoice, FinishReason
from gameserver.http.openai.call import Call
from gameserver.http.openai.constraints import structured_grammar
from gameserver.http.openai.errors import bad_field
from gameserver.http.openai.generation import Generation
from gameserver.http.openai.logprobs import completion_logprobs
from gameserver.http.openai.prompts import encode_prompts
from gameserver.http.openai.sampling import sampling_params
from gameserver.http.openai.schema import CompletionRequest
from gameserver.http.openai.streaming import event

#: OpenAI's own, unlike that of chat.
_REPLY_TOKENS = 16


async def completions(call: Call, fields: CompletionRequest) -> Response:
    """Continue texts.

    Raises:
        ApiError: what is wrong with the request, or that the engine cannot take it.
    """
    if fields.echo and fields.logprobs is not None:
        raise bad_field("echo", "logprobs of the prompt are not computed: leave out echo")
    prompts = await encode_prompts(call, fields.prompt, "prompt")
    longest = max(map(len, prompts))
    structured = fields.structured_outputs
    grammar = None if structured is None else structured_grammar(structured)
    params = sampling_params(
        fields,
        max_tokens=call.reply_budget(fields.max_tokens, longest, _REPLY_TOKENS, "prompt"),
        logprobs=fields.logprobs,
        prompt_field="prompt",
        grammar=grammar,
    )
    await call.prepare(grammar, "structured_outputs")
    generation = Generation(call.engine, call.order(fields, prompts, params, "prompt"))
    texts = _Texts(call, fields, prompts, generation)
    if fields.stream:
        return call.stream(generation, texts.events())
    return call.whole(await texts.whole())


class _Texts:
    """Turns what the engine releases into OpenAI's texts, whole or in pieces."""

    def __init__(
        self,
        call: Call,
        fields: CompletionRequest,
        prompts: list[list[int]],
        generation: Generation,
    ) -> None:
        self._call = call
        self._generation = generation
        self._top = fields.logprobs
        options = fields.stream_options
        self._with_usage = options is not None and bool(options.include_usage)
        echoes = [call.engine.tokenizer.decode(p) if fields.echo else "" for p in prompts]
        each = generation.size // len(prompts)
        #: What goes before each choice, until it has gone.
        self._echoes = [echo for echo in echoes for _ in range(each)]
        self._shown = [0] * generation.size  # characters of each choice so far

    async def whole(self) -> Completion:
        """The answer once all choices have ended."""
        outputs: list[list[RequestOutput]] = [[] for _ in range(self._generation.size)]
        async for batch in self._generation.outputs():
            for index, output in batch:
                outputs[index].append(output)
        choices = [self._choice(index, released) for index, released in enumerate(outputs)]
        return self._answer(choices, usage=True)

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer piece by piece, as server-sent events."""
        async for batch in self._generation.outputs():
            events = bytearray()
            for index, output in batch:
                if output.text or output.logprobs or output.finish:
                    choice = self._choice(index, [output])
                    events += event(msgspec.json.encode(self._answer([choice])))
            yield bytes(events)
        if self._with_usage:
            yield event(msgspec.json.encode(self._answer([], usage=True)))

    def _choice(self, index: int, outputs: list[RequestOutput]) -> CompletionChoice:
        """A choice, or what is new in it."""
        echo, self._echoes[index] = self._echoes[index], ""
        text = echo + "".join(output.text for output in outputs)
        logprobs = None
        if self._top is not None:
            offset = self._shown[index]
            logprobs = completion_logprobs(self._call.spelling, outputs, self._top, offset)
        self._shown[index] += len(text)
        return CompletionChoice(
            index=index,
            text=text,
            # What failed or was cancelled has raised already.
            finish_reason=cast("FinishReason | None", outputs[-1].finish),
            logprobs=logprobs,
        )

    def _answer(self, choices: list[CompletionChoice], *, usage: bool = False) -> Completion:
        absent = None if self._with_usage else UNSET
        return Completion(
            id=f"cmpl-{self._call.id}",
            created=self._call.created,
            model=self._call.model,
            choices=choices,
            usage=self._generation.usage() if usage else absent,
        )
