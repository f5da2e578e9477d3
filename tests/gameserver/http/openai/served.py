"""The API on a real socket, over a scripted engine: one byte a token, one token a step."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from engine.api import AsyncEngine
from engine.config import EngineConfig
from engine.decoding.sampling import Sampled
from engine.plan import StepPlan
from engine.scripted import ScriptedModel
from gameserver.budgets import Budgets
from gameserver.http.listener import Listener, bind
from gameserver.http.openai.api import OpenAIApi
from gameserver.keys import Keys
from gameserver.readiness import Readiness
from gameserver.settings import ApiSettings
from tests.engine.speech import NoisyRunner
from tests.engine.speech import byte_tokenizer as words_tokenizer
from tests.gameserver.stage import byte_chat, byte_tokenizer

TOKENIZER = byte_tokenizer()


@dataclass
class Served:
    """A running API and the node behind it."""

    engine: AsyncEngine | None
    url: str = ""
    readiness: Readiness = field(default_factory=Readiness)
    api: OpenAIApi | None = None
    budgets: Budgets | None = None

    def client(self, **options: Any) -> AsyncOpenAI:
        """The official client; it does not try again by itself."""
        given: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 30.0}
        return AsyncOpenAI(base_url=f"{self.url}/v1", **{**given, **options})

    async def at_rest(self) -> dict[str, float]:
        """The gauges once the engine does nothing; it must come to rest within ten seconds."""
        assert self.engine is not None
        until = time.monotonic() + 10
        while True:
            gauges = self.engine.gauges()
            if not (gauges["running"] or gauges["waiting"] or gauges["parked"]):
                return gauges
            assert time.monotonic() < until, f"the engine does not come to rest: {gauges}"
            await asyncio.sleep(0.01)


class Noise(NoisyRunner):
    """Draws at random; the hidden state of a token is that of its id alone."""

    def run(self, plan: StepPlan) -> list[Sampled]:
        for share in plan.sequences:
            if share.states is not None:
                share.states(torch.tensor([[1.0 + t % 7, t % 3, -1.0] for t in share.tokens]))
        return super().run(plan)


def noise() -> AsyncEngine:
    """An engine whose model speaks noise: what is right about its replies, a grammar made so."""
    tokenizer = words_tokenizer()
    model = ScriptedModel([[0]], tokenizer, byte_chat(tokenizer))
    engine = AsyncEngine(model, EngineConfig())
    core = engine._engine
    slots = core._pool.size * core._pool.block_size
    core._runner = Noise(tokenizer, core._pool.block_size, slots, 512)
    engine.scripted = False
    return engine


def scripted(replies: Sequence[str]) -> ScriptedModel:
    """A model that says `replies` in turn."""
    return ScriptedModel([TOKENIZER.encode(r) for r in replies], TOKENIZER, byte_chat(TOKENIZER))


@asynccontextmanager
async def serving(
    model: AsyncEngine | Sequence[str],
    *,
    step_ms: float = 0.5,
    keys: Keys | None = None,
    engine: dict[str, Any] | None = None,
    budgets: Budgets | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """The API over an engine, or over a script; `engine` and `settings` change theirs."""
    running = model
    if not isinstance(running, AsyncEngine):
        config = msgspec.convert({"script_step_ms": step_ms, **(engine or {})}, EngineConfig)
        running = AsyncEngine(scripted(running), config)
    await running.start()
    served = Served(running, budgets=budgets)
    served.readiness.state = "ready"
    served.api = OpenAIApi(served, msgspec.convert(settings, ApiSettings), keys or Keys({}))
    app = Starlette(
        routes=[Route("/openapi.json", served.api.document), Mount("/v1", served.api.app)]
    )
    listener = Listener(app, bind("127.0.0.1", 0, "--port"))
    await listener.start()
    served.url = f"http://127.0.0.1:{listener.port}"
    try:
        yield served
    finally:
        await running.stop()
        await listener.stop()
