"""What every endpoint knows of the request it answers, and how its answer leaves."""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from starlette.responses import Response

from engine.errors import EngineError
from engine.face import AnyEngine
from engine.grammar import Grammar
from engine.params import SamplingParams
from gameserver.http.openai.errors import ApiError, bad_field, from_engine, too_long
from gameserver.http.openai.generation import Generation, Order
from gameserver.http.openai.logprobs import Spelling
from gameserver.http.openai.schema import ChatRequest, CompletionRequest
from gameserver.http.openai.streaming import EventStream
from gameserver.settings import ApiSettings

#: Longer texts are encoded in a thread: a megabyte takes a second, in which nobody would be served.
_LONG_TEXT = 4096
#: On a machine that is slow but idle a first token may take so many times as long as alone.
_IDLE_TIMES = 2.0
#: Who is refused for a long queue is asked to come again within so many seconds.
_LATEST_S = 30.0

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Call:
    """One request for something to be computed.

    Attributes:
        model: name of the model, as the client asked for it.
        caller: whose key it came with.
        pay: told how many tokens were computed for it, bit by bit.
        on_end: told how a stream ended.
    """

    engine: AnyEngine
    settings: ApiSettings
    spelling: Spelling
    model: str
    caller: str
    pay: Callable[[int], None]
    on_end: Callable[[str], None]
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def shares(self) -> tuple[str, ...]:
        """On whose account the engine works, for the `fair` policy."""
        return (f"http {self.caller}", "http")

    async def encode(self, size: int, work: Callable[[], Result]) -> Result:
        """Do work that takes time in proportion to `size` characters."""
        return await asyncio.to_thread(work) if size > _LONG_TEXT else work()

    async def prepare(self, grammar: Grammar | None, param: str) -> None:
        """Compile what a reply must look like, beside the event loop.

        Raises:
            ApiError: 400, it cannot be followed; `param` is the field that asks for it.
        """
        if grammar is None:
            return
        try:
            await self.engine.prepare(grammar)
        except EngineError as error:
            refusal = from_engine(error, param)
            refusal.param = param
            raise refusal from error

    def reply_budget(self, wanted: int | None, prompt: int, most: int | None, param: str) -> int:
        """Tokens a reply may have.

        Args:
            wanted: by the client.
            prompt: tokens of the longest prompt.
            most: if the client says nothing; None leaves it to the settings.
            param: the field that holds the prompt.

        Raises:
            ApiError: 400, both do not fit.
        """
        limit = self.engine.max_model_len
        room = limit - prompt
        if wanted is None:
            wanted = min(most or self.settings.reply_tokens, max(room, 1))
        if wanted > room:
            raise too_long(prompt, wanted, limit, param)
        return wanted

    def order(
        self,
        fields: ChatRequest | CompletionRequest,
        prompts: list[list[int]],
        params: SamplingParams,
        prompt_field: str,
    ) -> Order:
        """The engine's view of a request.

        Raises:
            ApiError: 400, it wants a priority that is not for it, too much at once, or a stream's
                options without a stream; 429, its first token would take too long.
        """
        if fields.stream_options is not None and not fields.stream:
            raise bad_field("stream_options", "stream_options needs stream to be true")
        choices, settings = fields.n or 1, self.settings
        if len(prompts) * choices > settings.choices:
            raise bad_field(
                "n", f"prompts times n may be at most {settings.choices}; send several requests"
            )
        priority = settings.priority + (fields.priority or 0)
        if priority < settings.most_urgent:
            lowest = settings.most_urgent - settings.priority
            raise bad_field("priority", f"priority may be {lowest} or more on this server")
        self._check_wait(priority)
        return Order(
            prompts=prompts,
            params=params,
            choices=choices,
            priority=priority,
            # What one caller has had computed must not show in the times of another.
            salt=f"http {self.caller} {fields.cache_salt or ''}",
            shares=self.shares,
            pay=self.pay,
            prompt_field=prompt_field,
        )

    def _check_wait(self, priority: int) -> None:
        """Raise `ApiError` (429) if a first token of this class would come too late: later than on
        a machine that is slow but idle, and than the settings allow.
        """
        expected = self.engine.expect(priority)
        most_s = max(self.settings.first_token_s, _IDLE_TIMES * expected.alone_s)
        if self.settings.first_token_s and expected.seconds > most_s:
            retry_s = math.ceil(min(expected.seconds - most_s, _LATEST_S))
            raise ApiError(
                429,
                f"the first token would take {expected.seconds:.0f} s",
                code="rate_limit_exceeded",
                retry_s=retry_s,
            )

    def whole(self, body: msgspec.Struct) -> Response:
        """An answer in one piece."""
        return Response(
            msgspec.json.encode(body), headers=self.headers(), media_type="application/json"
        )

    def stream(self, generation: Generation, pieces: AsyncGenerator[bytes]) -> Response:
        """An answer piece by piece; the generation ends with it."""

        def end(outcome: str) -> None:
            generation.cancel()
            self.on_end(outcome)

        return EventStream(
            pieces, stall_s=self.settings.stall_s, headers=self.headers(), on_end=end
        )

    def headers(self) -> dict[str, str]:
        """Of every answer: what clients show when something is odd."""
        return {"x-request-id": self.id, "cache-control": "no-store"}
