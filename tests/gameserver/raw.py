"""A WebSocket client without a library, for what no library would send."""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from gameserver.game import GameServer

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_MASK = b"\0\0\0\0"  # a mask of zeros leaves the payload as it is


def narrow(server: GameServer) -> socket.socket:
    """A connection whose kernel holds little for a client that does not read.

    With much less the kernel drops acknowledgements together with what does not fit.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.connect(("127.0.0.1", server.port))
    sock.setblocking(False)
    return sock


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0) -> bytes:
    """A masked client frame."""
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    if len(payload) < 126:
        head += bytes([0x80 | len(payload)])
    elif len(payload) < 1 << 16:
        head += bytes([0x80 | 126]) + struct.pack("!H", len(payload))
    else:
        head += bytes([0x80 | 127]) + struct.pack("!Q", len(payload))
    return head + _MASK + payload


@dataclass
class RawClient:
    """Bytes in, bytes out."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, server: GameServer, sock: socket.socket | None = None) -> Self:
        """Open a TCP connection, or use one."""
        if sock is not None:
            return cls(*await asyncio.open_connection(sock=sock))
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    @classmethod
    async def upgraded(cls, server: GameServer, sock: socket.socket | None = None) -> Self:
        """Open a WebSocket; its `hello` is still to be read."""
        client = await cls.connect(server, sock)
        client.writer.write(upgrade_request())
        assert (await client.head()).startswith("HTTP/1.1 101")
        return client

    async def head(self) -> str:
        """The head of an HTTP response."""
        async with asyncio.timeout(20):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def request(self, text: str) -> str:
        """Send an HTTP request as it is; the whole answer until the server closes."""
        self.writer.write(text.encode())
        async with asyncio.timeout(20):
            return (await self.reader.read()).decode()

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: opcode and payload."""
        async with asyncio.timeout(20):
            first, second = await self.reader.readexactly(2)
            length = second & 127
            if length == 126:
                (length,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
            assert first & 0x80, "messages to clients are never fragmented"
            return first & 15, await self.reader.readexactly(length)

    async def close_code(self) -> int | None:
        """Read to the end; the code of the close frame, None if there was none."""
        code = None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                opcode, payload = await self.frame()
                if opcode == CLOSE:
                    code = struct.unpack("!H", payload[:2])[0]
        return code

    def drop(self) -> None:
        """Vanish without a word."""
        self.writer.transport.abort()


def upgrade_request(
    headers: str = "", path: str = "/v1/ws", subprotocol: str = "npc.v1.json"
) -> bytes:
    """The opening handshake of a WebSocket."""
    offer = f"Sec-WebSocket-Protocol: {subprotocol}\r\n" if subprotocol else ""
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n"
        f"{offer}{headers}\r\n"
    ).encode()
