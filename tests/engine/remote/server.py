"""A server of OpenAI's API on raw sockets, which does whatever a test tells it to."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

MODEL = "far"
#: Nobody may count on a connection that is about to be closed.
CLOSING = "connection: close"


@dataclass(eq=False)
class Call:
    """One request, and how to answer it.

    Attributes:
        body: its JSON; {} without one.
        gone: set when the client has hung up.
    """

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, raw: bytes) -> None:
        """Send bytes as they are."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(raw)
            await self.writer.drain()

    async def answer(self, status: int, body: Any, **headers: str) -> None:
        """A whole answer of JSON."""
        raw = json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Said", CLOSING, f"content-length: {len(raw)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    async def begin(self) -> None:
        """The head of a stream of events, which ends with the connection."""
        head = ["HTTP/1.1 200 OK", CLOSING, "content-type: text/event-stream"]
        await self.send("\r\n".join(head).encode() + b"\r\n\r\n")

    async def say(self, *texts: str) -> None:
        """Events with text."""
        for text in texts:
            await self.send(event(text))

    async def end(self, reason: str = "stop", usage: dict[str, Any] | None = None) -> None:
        """The last events of a reply."""
        await self.send(event("", reason))
        if usage is not None:
            await self.send(b"data: " + json.dumps({"choices": [], "usage": usage}).encode())
            await self.send(b"\n\n")
        await self.send(b"data: [DONE]\n\n")


Answer = Callable[[Call], Awaitable[None]]


def event(text: str, reason: str | None = None) -> bytes:
    """A piece of a chat as servers send it."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def saying(*texts: str, usage: dict[str, Any] | None = None) -> Answer:
    """An answer that is a whole reply."""

    async def answer(call: Call) -> None:
        if not call.body.get("stream"):
            message = {"role": "assistant", "content": "".join(texts)}
            await call.answer(200, {"choices": [{"message": message, "finish_reason": "stop"}]})
            return
        await call.begin()
        await call.say(*texts)
        await call.end(usage=usage)

    return answer


def pausing(go: asyncio.Event) -> Answer:
    """An answer of two pieces, "Once" and " more.", the second of which comes when it may `go`."""

    async def answer(call: Call) -> None:
        await call.begin()
        await call.say("Once")
        await go.wait()
        await call.say(" more.")
        await call.end()

    return answer


async def listing(call: Call) -> None:
    """The list of models, which has one."""
    await call.answer(200, {"data": [{"id": MODEL, "max_model_len": 4096}]})


class FarServer:
    """Listens on a free port; lists one model, and answers all else as `reply` says.

    Attributes:
        url: where.
        calls: requests for replies so far.
        reply: answers one of them; the connection is closed after it.
        models: answers who asks for the list of models.
    """

    def __init__(self, reply: Answer) -> None:
        self.url = ""
        self.calls: list[Call] = []
        self.reply = reply
        self.models: Answer = listing
        self.open: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        try:
            call = await _read(reader, writer)
            if call.path == "/v1/models":
                await self.models(call)
                return
            self.calls.append(call)
            leaving = asyncio.ensure_future(_departure(reader, call))
            try:
                await self.reply(call)
            finally:
                leaving.cancel()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open.discard(task)
            writer.close()


@contextlib.asynccontextmanager
async def far_server(
    reply: Answer, port: int = 0, encryption: ssl.SSLContext | None = None
) -> AsyncIterator[FarServer]:
    """A running server."""
    far = FarServer(reply)
    listening = await asyncio.start_server(far.serve, "127.0.0.1", port, ssl=encryption)
    there = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    far.url = (
        f"http://{there}"
        if encryption is None
        else f"https://{there}".replace("127.0.0.1", "localhost")
    )
    try:
        yield far
    finally:
        listening.close()
        for task in list(far.open):
            task.cancel()
        await asyncio.gather(*far.open, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Call(first.split()[1], headers, json.loads(raw) if raw else {}, writer)


async def _departure(reader: asyncio.StreamReader, call: Call) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1024):
            pass
    call.gone.set()
