"""Serves an ASGI application on one port, inside an event loop that belongs to somebody else."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from gameserver.http.patience import PatientProtocol

#: Linux drops a connection whose client takes nothing for so long, and with it what was written.
_STALL_MS = 60_000


class PortTaken(OSError):
    """A port cannot be listened on; the message names it and what to do."""


def bind(host: str, port: int, option: str) -> socket.socket:
    """A socket bound to `host`:`port`; port 0 takes a free one.

    Args:
        option: the command line option that chooses the port, for the message.

    Raises:
        PortTaken: somebody else has it, or we may not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        # `create_server` adds the address to the system's own words.
        number = getattr(error, "errno", None) or 0  # below 0: of the resolver, not the system
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
        raise PortTaken(f"cannot listen on {host}:{port}: {reason} ({option} chooses it)") from None


def authority(host: str, port: int) -> str:
    """Host and port as they stand in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Listener:
    """An HTTP server on a bound socket.

    Attributes:
        port: the one it listens on.
    """

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        self.port: int = sock.getsockname()[1]
        self._socket = sock
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted sockets inherit it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALL_MS)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=PatientProtocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,  # it would believe whoever is on this machine
                timeout_graceful_shutdown=1,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer from now on."""
        self._task = asyncio.create_task(self._server.serve([self._socket]))
        await self._server.answering.wait()

    async def stop(self) -> None:
        """Finish running requests, at most for a second, and close the socket. Idempotent."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()


class _Server(uvicorn.Server):
    """uvicorn, without its hand on the process's signals: those are the application's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.answering.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield
