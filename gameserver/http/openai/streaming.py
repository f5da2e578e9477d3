"""Answers that leave piece by piece, and clients that leave before them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gameserver.http.openai.errors import ApiError

#: What keeps proxies and clients from giving up while a request waits for its turn.
_STILL_HERE = b": waiting\n\n"
_DONE = b"data: [DONE]\n\n"

_log = structlog.get_logger("troupe.api")
Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed the connection, or reads nothing; nobody waits for the answer."""


def event(data: bytes) -> bytes:
    """One server-sent event; `data` is JSON on one line."""
    return b"data: %b\n\n" % data


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """Do the work, unless the client leaves first: then it is cancelled where it stands.

    The body of the request must have been read.

    Raises:
        ClientGone: the client left.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_departure(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class EventStream(Response):
    """Server-sent events, the last of which says `[DONE]`, or what went wrong.

    Args:
        pieces: what to send, one or several whole events at a time; an empty one where there is
            nothing to send for long.
        stall_s: a client that takes nothing for so long is given up.
        on_end: told how it ended: "ok", "error", "gone".
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        *,
        stall_s: float,
        headers: dict[str, str],
        on_end: Callable[[str], None],
    ) -> None:
        super().__init__(
            headers={"cache-control": "no-store", "x-accel-buffering": "no", **headers},
            media_type="text/event-stream",
        )
        del self.headers["content-length"]
        self._pieces = pieces
        self._stall_s = stall_s
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything. However that ends, the source of the pieces is closed."""
        outcome = "gone"
        try:
            outcome = await unless_gone(receive, self._send_all(send))
        except ClientGone:
            pass
        finally:
            self._on_end(outcome)

    async def _send_all(self, send: Send) -> str:
        async def write(body: bytes, more: bool = True) -> None:
            try:
                async with asyncio.timeout(self._stall_s):
                    await send({"type": "http.response.body", "body": body, "more_body": more})
            except TimeoutError:
                raise ClientGone from None

        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        outcome, last = "ok", _DONE
        async with contextlib.aclosing(self._pieces) as pieces:
            try:
                async for piece in pieces:
                    await write(piece or _STILL_HERE)
            except ApiError as error:
                outcome, last = "error", event(error.body())
            except ClientGone:
                raise
            except Exception:
                _log.exception("a stream failed")
                outcome, last = "error", event(ApiError(500, "internal error").body())
        await write(last, more=False)
        return outcome


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
