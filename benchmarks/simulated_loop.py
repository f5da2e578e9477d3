"""An event loop whose time passes as soon as nothing is left to do, and an engine that steps in it.

What a server does with tasks and timers then takes no time, and comes out the same on any machine.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from benchmarks.simulated import Device, SimulatedRunner
from engine.api import AsyncEngine
from engine.blocks import BlockPool
from engine.chat import ChatFormat
from engine.config import EngineConfig
from engine.decoding.sampling import Sampled
from engine.loop import Engine
from engine.outputs import RequestOutput
from engine.plan import StepPlan
from engine.prefixes import Prefix
from engine.scripted import ScriptedModel
from engine.tokenizer import Tokenizer

Result = TypeVar("Result")
_BLOCKS, _LONGEST = 60_000, 16_384


class _Selector(selectors.SelectSelector):
    """Never waits for a timer: it lets the loop's time pass. For other threads it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector.select`."""
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout:
            self.now += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._selector_of_ours = _Selector()
        super().__init__(self._selector_of_ours)

    def time(self) -> float:
        """Seconds since it was made."""
        return self._selector_of_ours.now


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` in a loop of this kind."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)


class _StepClock:
    """The loop's time; while a step is computed, as far ahead as the device is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.ahead = 0.0

    def __call__(self) -> float:
        return self._loop.time() + self.ahead

    @property
    def now(self) -> float:
        """See `SimulatedClock`."""
        return self()

    @now.setter
    def now(self, to: float) -> None:
        self.ahead = to - self._loop.time()

    def rest(self, until: float) -> None:
        """See `SimulatedClock.rest`."""
        self.now = max(self.now, until)


class _Speaker(SimulatedRunner):
    """Draws what `speak` says, request by request and token by token."""

    def __init__(self, device: Device, clock: _StepClock, speak: Callable[[int, int], int]) -> None:
        super().__init__(device, clock)  # type: ignore[arg-type]
        self._speak = speak

    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `engine.runner.Runner.run`."""
        super().run(plan)
        owners = [share.owner for share in plan.sequences if share.sample]
        return [
            Sampled(self._speak(owner.id, owner.outputs))
            for owner in owners
            if not isinstance(owner, Prefix)
        ]


class _Bell:
    """Stands where the engine's thread has an event."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.set = ring


class LoopEngine(AsyncEngine):
    """An engine on a simulated device, in the running `SimulatedLoop`.

    Attributes:
        waits: seconds from submission to the first token, by class, in order, and `firsts`: when
            that was, in the loop's time.
        submitted: requests so far.
    """

    def __init__(
        self,
        device: Device,
        config: EngineConfig,
        tokenizer: Tokenizer,
        chat: ChatFormat,
        speak: Callable[[int, int], int],
    ) -> None:
        """`speak(request, n)` is token n of what is replied to a request."""
        super().__init__(ScriptedModel([[0]], tokenizer, chat), config)
        self._events = asyncio.get_running_loop()
        self._clock = _StepClock(self._events)
        runner = _Speaker(device, self._clock, speak)
        pool = BlockPool(_BLOCKS, config.block_size)
        self._engine = Engine(runner, tokenizer, pool, _LONGEST, config, self._clock)
        self._wake = _Bell(self._ring)  # type: ignore[assignment]
        self.scripted, self.held, self.max_model_len = False, True, _LONGEST
        self._stepping = False
        self._open: dict[int, tuple[int, float]] = {}
        self.waits: dict[int, list[float]] = {}
        self.firsts: dict[int, list[float]] = {}
        self.submitted = 0

    @property
    def alive(self) -> bool:
        """As long as the loop is."""
        return True

    async def start(self) -> None:
        """See `AsyncEngine.start`."""
        self._listeners.attach()

    async def stop(self) -> None:
        """Nothing runs beside the loop."""

    def submit(self, *arguments: Any, **named: Any) -> Any:
        """See `AsyncEngine.submit`."""
        ticket = super().submit(*arguments, **named)
        self.submitted += 1
        self._open[ticket.id] = (named["priority"], self._events.time())
        return ticket

    def _ring(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._events.call_soon(self._step)

    def _step(self) -> None:
        if not self._engine.has_work:
            self._stepping = False
            return
        outputs = self._engine.step()
        took, self._clock.ahead = self._clock.ahead, 0.0
        self._events.call_later(took, self._land, outputs)

    def _land(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            if output.token_ids and output.request_id in self._open:
                priority, came = self._open.pop(output.request_id)
                self.waits.setdefault(priority, []).append(self._events.time() - came)
                self.firsts.setdefault(priority, []).append(self._events.time())
        self._listeners.send(outputs)
        self._step()
