"""Measuring an engine in this process: what HTTP adds is left out."""

from collections.abc import AsyncIterator

from engine.api import AsyncEngine
from engine.errors import EngineError
from engine.params import SamplingParams
from gameserver.bench.load import Arrived
from gameserver.bench.workload import Line
from gameserver.remote import RemoteError


class EngineTarget:
    """An engine as a target; quest-givers have their class."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def reply(self, line: Line, tokens: int) -> AsyncIterator[Arrived]:
        """See `gameserver.bench.load.Target`."""
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        try:
            outputs = self._engine.stream(line.prompt, params, priority=0 if line.quest else 1)
            async for output in outputs:
                bill = output.usage
                usage = None
                if bill is not None:
                    usage = (bill.prompt_tokens, bill.cached_tokens, bill.completion_tokens)
                yield Arrived(len(output.token_ids), usage)
                if output.finish in ("failed", "cancelled"):
                    raise RemoteError(output.finish, output.error or output.finish)
        except EngineError as error:
            raise RemoteError(error.code, str(error)) from error
