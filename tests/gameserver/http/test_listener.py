"""A port that cannot be had is named before anything else is done; one that can is for those who
ask something.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gameserver.http import patience
from gameserver.http.listener import Listener, PortTaken, authority, bind


def test_a_taken_port_is_named_with_the_option_that_chooses_it() -> None:
    with bind("127.0.0.1", 0, "--port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"127\.0\.0\.1:{port}.*--console-port"):
            bind("127.0.0.1", port, "--console-port")


def test_a_host_that_is_not_ours_is_an_error_of_the_same_kind() -> None:
    with pytest.raises(PortTaken):
        bind("no-such-host.invalid", 0, "--port")


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert authority("::1", 80) == "[::1]:80"
    assert authority("127.0.0.1", 80) == "127.0.0.1:80"


def test_sockets_are_ordinary_listening_ones() -> None:
    with (
        bind("127.0.0.1", 0, "--port") as sock,
        socket.create_connection(sock.getsockname(), timeout=5),
    ):
        pass


async def _who(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(str(scope["client"][0]))(scope, receive, send)


async def test_nobody_says_who_they_are_in_a_header() -> None:
    """The library believes those on this machine, where web pages and proxies are, too."""
    listener = Listener(_who, bind("127.0.0.1", 0, "--port"))
    await listener.start()
    try:
        async with httpx.AsyncClient() as http:
            spoofed = {"X-Forwarded-For": "203.0.113.9"}
            reply = await http.get(f"http://127.0.0.1:{listener.port}/", headers=spoofed)
        assert reply.text == "127.0.0.1"
    finally:
        await listener.stop()


async def _hello(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("hello")(scope, receive, send)


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[int]:
    listener = Listener(_hello, bind("127.0.0.1", 0, "--port"))
    await listener.start()
    try:
        yield listener.port
    finally:
        await listener.stop()


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_a_connection_without_a_request_is_closed(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was answered before, and goes on with half a request."""
    monkeypatch.setattr(patience, "HEAD_S", 0.2)
    async with listening() as port, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        if said.endswith(b"\r\n\r\n"):
            await reader.readuntil(b"hello")
            writer.write(b"GET / HT")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_whoever_asks_gets_in_however_many_are_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "_MOST", 3)
    async with listening() as port, asyncio.timeout(10):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"hello")
        for oldest, _ in silent[:3]:
            with contextlib.suppress(ConnectionError):
                assert await oldest.read() == b""
        for _, end in [*silent, (reader, writer)]:
            end.close()


def test_all_the_open_files_that_are_granted_are_taken() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
        patience.open_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
