"""Who is told what an engine says, in the event loop of those who asked."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from engine.outputs import RequestOutput, Usage

Sink = Callable[[RequestOutput], None]

_log = logging.getLogger("troupe.engine")


class Listeners:
    """The listeners of open requests by request id. Used in the event loop only, but for `send`."""

    def __init__(self) -> None:
        self._sinks: dict[int, Sink] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Deliver in the running event loop."""
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._sinks)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._sinks

    def add(self, request_id: int, sink: Sink) -> None:
        """Let a request have a listener until its last output."""
        self._sinks[request_id] = sink

    def call(self, function: Callable[[], None]) -> None:
        """Run `function` in the loop, from any thread, unless that has been closed."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            _log.debug("the event loop is gone")

    def send(self, outputs: list[RequestOutput]) -> None:
        """Deliver outputs, from any thread: in one call, however many requests they belong to."""
        self.call(partial(self._deliver, outputs))

    def abandon(self) -> None:
        """Tell everybody who still listens, from any thread, that nothing more will come."""
        self.call(self._abandon)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            sink = self._sinks.get(output.request_id)
            if sink is None:
                continue
            if output.finish is not None:
                del self._sinks[output.request_id]
            try:
                sink(output)
            except Exception:  # one listener's fault must not silence the others
                _log.exception("a listener of request %d failed", output.request_id)

    def _abandon(self) -> None:
        nothing = Usage(0, 0, 0, 0.0, None, None, 0.0)
        self._deliver([RequestOutput(each, "", (), "cancelled", nothing) for each in self._sinks])
