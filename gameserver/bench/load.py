"""Sends a workload at a given pace and notes when everything came."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gameserver.bench.workload import Line
from gameserver.remote import RemoteError, RemoteModel


@dataclass(frozen=True, slots=True)
class Arrived:
    """Something of a reply came.

    Attributes:
        tokens: how many, where that is known at once.
        usage: (prompt, cached, completion) tokens, with the last.
    """

    tokens: int
    usage: tuple[int, int, int] | None = None


class Target(Protocol):
    """What is measured."""

    def reply(self, line: Line, tokens: int) -> AsyncIterator[Arrived]:
        """A reply of `tokens` tokens to a line, as it comes. Raises `RemoteError`."""


@dataclass(slots=True)
class Reply:
    """What became of one line; times are monotonic seconds.

    Attributes:
        quest: whether a quest-giver was spoken to.
        sent: when it was sent.
        times: when something of the reply came.
        done: when it was complete.
        prompt, cached, completion: token counts, as the server says.
        error: the kind of failure, if it was one.
    """

    quest: bool
    sent: float
    times: list[float] = field(default_factory=list)
    done: float = 0.0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    error: str | None = None


async def run(
    target: Target,
    lines: Sequence[Line],
    *,
    tokens: int,
    rate: float,
    concurrency: int,
    seed: int,
    on_reply: Callable[[Reply], None],
) -> list[Reply]:
    """Speak all lines and return what became of them, in their order.

    Args:
        tokens: of each reply.
        rate: lines a second on average, at the random times of a Poisson process; 0 sends all at
            once. A line's time counts from when it should have been sent, so that a slow server
            gets no credit for keeping the next line waiting.
        concurrency: most lines open at a time.
        seed: of the arrival times.
        on_reply: told each time one is complete.
    """
    chance, slots = random.Random(seed), asyncio.Semaphore(concurrency)

    async def speak(line: Line, at: float) -> Reply:
        await asyncio.sleep(at - time.monotonic())
        reply = Reply(line.quest, at if rate else 0.0)
        async with slots:
            reply.sent = reply.sent or time.monotonic()
            await _follow(target, line, tokens, reply)
        on_reply(reply)
        return reply

    at, speaking = time.monotonic(), []
    for line in lines:
        speaking.append(asyncio.ensure_future(speak(line, at)))
        at += chance.expovariate(rate) if rate else 0.0
    try:
        return await asyncio.gather(*speaking)
    finally:
        for task in speaking:
            task.cancel()


async def _follow(target: Target, line: Line, tokens: int, reply: Reply) -> None:
    counted = 0
    try:
        async for arrived in target.reply(line, tokens):
            if arrived.tokens:
                reply.times.append(time.monotonic())
                counted += arrived.tokens
            if arrived.usage is not None:
                reply.prompt, reply.cached, reply.completion = arrived.usage
        if not reply.times:
            reply.error = "empty"
    except RemoteError as error:
        reply.error = error.kind
    reply.completion = reply.completion or counted
    reply.done = time.monotonic()


class HttpTarget:
    """A server behind a URL.

    Args:
        model: at the server.
        words: what to send instead of token ids, for servers that take text only: words[id % n].
        to_the_end: ask for exactly so many tokens, with vLLM's `ignore_eos`.
    """

    def __init__(self, model: RemoteModel, words: Sequence[str], *, to_the_end: bool) -> None:
        self._model = model
        self._words = words
        self._fields = {"temperature": 0.0, **({"ignore_eos": True} if to_the_end else {})}

    async def reply(self, line: Line, tokens: int) -> AsyncIterator[Arrived]:
        """See `Target`."""
        prompt: str | list[int] = line.prompt
        if self._words:
            prompt = " ".join(self._words[token % len(self._words)] for token in line.prompt)
        async for piece in self._model.complete(prompt, {**self._fields, "max_tokens": tokens}):
            usage = None
            if piece.usage:
                details = piece.usage.get("prompt_tokens_details") or {}
                usage = (
                    int(piece.usage.get("prompt_tokens") or 0),
                    int(details.get("cached_tokens") or 0),
                    int(piece.usage.get("completion_tokens") or 0),
                )
            # Tokens that complete no character have no text yet and cannot be seen from outside.
            yield Arrived(1 if piece.text else 0, usage)
