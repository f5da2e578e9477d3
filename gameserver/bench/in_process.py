"""Measuring an engine in this process, asked as the game server asks it: what HTTP adds is left
out.
"""

from collections.abc import AsyncIterator

from engine.api import AsyncEngine
from engine.errors import EngineError
from engine.params import SamplingParams
from engine.prefixes import Prefix
from gameserver.bench.load import Arrived
from gameserver.bench.workload import Line
from gameserver.remote import RemoteError


class EngineTarget:
    """An engine as a target: scenes and personas by their handles, which it keeps; quest-givers
    have their class.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._nodes: dict[tuple[int | None, tuple[int, ...]], Prefix] = {}

    async def reply(self, line: Line, tokens: int) -> AsyncIterator[Arrived]:
        """See `gameserver.bench.load.Target`."""
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        try:
            persona = self._node(line.persona, self._node(line.scene, None))
            outputs = self._engine.stream(
                line.turn, params, prefix=persona, priority=0 if line.quest else 1
            )
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

    def _node(self, ids: tuple[int, ...], parent: Prefix | None) -> Prefix:
        key = (parent.id if parent else None, ids)
        if key not in self._nodes:
            self._nodes[key] = self._engine.create_prefix(ids, parent)
        return self._nodes[key]
