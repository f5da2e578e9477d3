"""A line to a server that can be slow, silent or broken."""

import asyncio
import contextlib


class Proxy:
    """Passes connections on to a port of this machine.

    Attributes:
        port: where to connect instead.
        delay_s: how long what is sent takes, in each direction.
        open: whether anything passes at all; what does not, is lost with its connection.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.delay_s = 0.0
        self.open = True
        self._target = target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await asyncio.sleep(self.delay_s)
                if self.open:
                    sink.write(data)
        sink.close()
