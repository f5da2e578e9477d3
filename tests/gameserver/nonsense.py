"""A server whose model speaks noise: random logits, and all else the real engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from engine.api import AsyncEngine
from engine.decoding.sampling import Sampled, sample
from engine.plan import StepPlan
from engine.runner import sample_spec
from engine.tokenizer import Tokenizer
from gameserver.game import GameServer
from npc.cast import Cast
from tests.gameserver.stage import byte_model, settings_with


class Noise:
    """Draws every token from random logits, and is fond of opening brackets."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._width = tokenizer.vocab_size
        self._bracket = tokenizer.encode("[")[0]

    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `engine.runner.Runner.run`."""
        specs = [sample_spec(share) for share in plan.sequences if share.sample]
        rows = []
        for spec in specs:
            row = np.random.default_rng((spec.seed, spec.position)).normal(0, 3, self._width)
            row[self._bracket] += 6
            rows.append(row.astype(np.float32))
        return sample(torch.from_numpy(np.stack(rows)), specs) if rows else []


@asynccontextmanager
async def serving_nonsense(pack: Path, **sections: Any) -> AsyncIterator[GameServer]:
    """A game server for a pack on a model of noise."""
    settings = settings_with(**sections)
    config = msgspec.structs.replace(settings.engine, max_model_len=32_768)
    model = byte_model(["x"])
    engine = AsyncEngine(model, config)
    engine._engine._runner = Noise(model.tokenizer)  # type: ignore[assignment]
    engine.scripted = False  # replies are held to what they may say, as a model's are
    await engine.start()
    cast = Cast(engine, settings.replies)
    await cast.open(pack)
    server = GameServer(cast, settings)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        await cast.close()
        await engine.stop()
