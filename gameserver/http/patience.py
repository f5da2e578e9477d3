"""How long the console's port waits for a client that is silent, and how many it bears.

uvicorn waits for the first request of a connection for ever, and for the rest of a request's head
as long. Sockets that say nothing would take every file the process may have open: then neither
players nor health checks can connect.
"""

import asyncio
from contextlib import suppress
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

#: Seconds from the opening of a connection, or the end of an answer, to the end of the next head.
HEAD_S = 10.0
#: Most connections of the console, and their share of the files the process may have open: the
#: others are for players.
_MOST, _SHARE = 2048, 1 / 4


def most_connections() -> int:
    """How many connections the console bears; further ones take the place of silent ones."""
    if resource is None:
        return _MOST
    return max(1, min(_MOST, int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _SHARE)))


def open_many_files() -> None:
    """Take all the open files that the system grants: every player's socket is one, and the usual
    1,024 were chosen for programs of another kind.
    """
    if resource is None:
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # some systems grant less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class PatientProtocol(H11Protocol):
    """uvicorn's connection, given up where no request comes.

    Attributes:
        silent_since: loop time of its opening, or of the end of the latest answer.
    """

    silent_since = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request; beyond the most connections, in place of who is silent longest."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > most_connections():
            others = cast("set[PatientProtocol]", self.connections)
            silent = [other for other in others if other.is_silent]
            min(silent, key=lambda other: other.silent_since).transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is waited for."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    @property
    def is_silent(self) -> bool:
        """Whether it is open, and no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        asks = cycle is not None and not cycle.response_complete
        return not asks and not self.transport.is_closing()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.silent_since = self.loop.time()
        self._timer = self.loop.call_later(HEAD_S, self._give_up, self.cycle)

    def _give_up(self, last: RequestResponseCycle | None) -> None:
        """End the connection if there was no request since `last`."""
        if self.cycle is last:
            self.transport.abort()
