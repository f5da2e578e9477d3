"""A remote engine that knows what its servers understand, so that nothing is asked at the start."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from engine.chat import Message
from engine.config import EngineConfig
from engine.decoding.compiler import GrammarCompiler
from engine.outputs import RequestOutput
from engine.params import SamplingParams
from engine.remote.config import RemoteConfig
from engine.remote.dialect import Dialect
from engine.remote.engine import RemoteEngine
from engine.remote.grammars import WAYS
from engine.remote.letters import letters
from engine.ticket import Ticket
from tests.engine.remote.server import MODEL

GRAMMARS = GrammarCompiler(letters())
CHAT = Dialect(MODEL, "chat", 4096)
HOLDING = replace(CHAT, ways=dict.fromkeys(WAYS[0].kinds, WAYS[0]))
PATIENCE_S = 30.0


@contextlib.asynccontextmanager
async def remote(
    *urls: str, dialect: Dialect = CHAT, order: EngineConfig | None = None, **settings: Any
) -> AsyncIterator[RemoteEngine]:
    """An engine from start to stop. It tries nothing again, and waits briefly, unless told."""
    usual = {"retries": 0, "backoff_s": 0.01, "backoff_most_s": 0.05}
    config = RemoteConfig(urls=urls, **{**usual, **settings})
    engine = RemoteEngine(config, order or EngineConfig(), dialect, None, GRAMMARS)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


class Heard:
    """One request and all that was heard of it."""

    def __init__(
        self, engine: RemoteEngine, text: str = "Hello?", params: Any = None, **more: Any
    ) -> None:
        self.outputs: list[RequestOutput] = []
        self._changed = asyncio.Event()
        params = params or SamplingParams(max_tokens=64)
        ids = engine.chat.encode([Message("user", text)], engine.tokenizer)
        self.ticket: Ticket = engine.submit(ids, params, on_output=self._take, **more)

    def _take(self, output: RequestOutput) -> None:
        self.outputs.append(output)
        self._changed.set()

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    async def until(self, text: str) -> None:
        """Wait until so much was heard."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.text:
                self._changed.clear()
                await self._changed.wait()

    async def last(self) -> RequestOutput:
        """Wait for the end; only the last output has one."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.outputs or self.outputs[-1].finish is None:
                self._changed.clear()
                await self._changed.wait()
        assert [output.finish for output in self.outputs[:-1]] == [None] * (len(self.outputs) - 1)
        return self.outputs[-1]
