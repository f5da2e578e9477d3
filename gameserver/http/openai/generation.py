"""All choices of one HTTP request: they run together in the engine and end together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from engine.errors import EngineError
from engine.face import AnyEngine
from engine.outputs import RequestOutput
from engine.outputs import Usage as EngineUsage
from engine.params import SamplingParams
from engine.ticket import Ticket
from gameserver.http.openai.answers import CachedTokens, Usage
from gameserver.http.openai.errors import ApiError, from_engine, unready

#: Whoever waits for a request that waits for its turn hears so about this often.
STILL_WAITING_S = 10.0


@dataclass(frozen=True, slots=True)
class Order:
    """What one request wants to have generated.

    Attributes:
        prompts: token ids of each prompt.
        params: of every choice.
        choices: samples of each prompt.
        priority: class in the engine.
        salt: only requests of equal salt share what was cached.
        shares: on whose account it runs.
        pay: told how many tokens each choice has cost.
        prompt_field: the field of the request that holds the prompts, for errors.
    """

    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    choices: int
    priority: int
    salt: str
    shares: tuple[str, ...]
    pay: Callable[[int], None]
    prompt_field: str


class Generation:
    """Runs an order; choice k of prompt p has index p * choices + k.

    Attributes:
        size: number of choices of all prompts.
    """

    def __init__(self, engine: AnyEngine, order: Order) -> None:
        """Queue all of it.

        Raises:
            ApiError: the engine refuses one of the choices; none is left behind in it.
        """
        self._engine = engine
        self._order = order
        self._outputs: asyncio.Queue[tuple[int, RequestOutput]] = asyncio.Queue()
        self._tickets: list[Ticket] = []
        self._bills: dict[int, EngineUsage] = {}
        self.size = len(order.prompts) * order.choices
        try:
            for prompt in order.prompts:
                self._submit(prompt)
        except EngineError as error:
            self.cancel()
            raise from_engine(error, order.prompt_field) from error

    def cancel(self) -> None:
        """End what still runs or waits. Idempotent."""
        for ticket in self._tickets:
            self._engine.cancel(ticket)
        self._tickets.clear()

    async def outputs(self) -> AsyncIterator[list[tuple[int, RequestOutput]]]:
        """What the engine released, with the index of the choice: all there is at a time, or
        nothing if that is all there was for `STILL_WAITING_S`.

        Raises:
            ApiError: a choice could not be finished.
        """
        try:
            while len(self._bills) < self.size:
                batch = []
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STILL_WAITING_S):
                        batch.append(await self._outputs.get())
                while not self._outputs.empty():
                    batch.append(self._outputs.get_nowait())
                for index, output in batch:
                    self._check(index, output)
                yield batch
        finally:
            self.cancel()

    def usage(self) -> Usage:
        """The bill of all choices. A prompt counts once, however many choices it has."""
        firsts = [self._bills[i] for i in range(0, self.size, self._order.choices)]
        prompt = sum(bill.prompt_tokens for bill in firsts)
        completion = sum(bill.completion_tokens for bill in self._bills.values())
        cached = sum(bill.cached_tokens for bill in firsts)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=CachedTokens(cached),
        )

    def _submit(self, prompt: Sequence[int]) -> None:
        """Queue the choices of one prompt; with a seed, choice k draws from seed + k."""
        order, first = self._order, None
        for k in range(order.choices):
            seed = order.params.seed
            params = replace(order.params, seed=None if seed is None else (seed + k) % 2**63)
            ticket = self._engine.submit(
                prompt,
                params,
                on_output=partial(self._take, len(self._tickets)),
                priority=order.priority,
                salt=order.salt,
                shares=order.shares,
                sibling=first,
            )
            first = first or ticket
            self._tickets.append(ticket)

    def _take(self, index: int, output: RequestOutput) -> None:
        if output.usage is not None:  # also of one that was cancelled, for which nobody waits
            self._order.pay(output.usage.computed)
        self._outputs.put_nowait((index, output))

    def _check(self, index: int, output: RequestOutput) -> None:
        if output.refusal is not None:
            raise from_engine(output.refusal, self._order.prompt_field)
        if output.finish == "failed":
            raise ApiError(500, output.error or "the engine failed", code="engine_failed")
        if output.finish == "cancelled":  # not by us: we do not listen any more by then
            halted = self._engine.halted
            raise unready("generation is halted" if halted else "the server is shutting down")
        if output.finish is not None:
            assert output.usage is not None
            self._bills[index] = output.usage
