"""Case 22: what somebody costs who is only there. Ten thousand of them fit 250 MB."""

import asyncio
import gc
import socket
import tracemalloc
from pathlib import Path

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.raw import TEXT, frame, upgrade_request
from tests.gameserver.stage import serving, until

#: 250 MB for 10,000, less what is not Python's: some 3 KiB of sockets and fragments.
MOST_BYTES = 22 * 1024
#: As many headers as a browser behind two proxies sends.
HEADERS = "".join(f"X-Forwarded-Thing-{number}: {'y' * 100}\r\n" for number in range(30))


async def visit(server: GameServer, number: int) -> socket.socket:
    """A session on the barest of sockets, so that memory counted is the server's."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", server.port))
    await loop.sock_sendall(sock, upgrade_request(HEADERS))
    wish = b'{"t":"identify","d":{"player":"p%d"}}' % number
    await loop.sock_sendall(sock, frame(TEXT, wish))
    seen = b""
    while b'"welcome"' not in seen:
        seen += await loop.sock_recv(sock, 65536)
    await loop.sock_sendall(sock, frame(TEXT, b'{"t":"heartbeat","d":{"n":1}}'))
    await loop.sock_recv(sock, 65536)
    return sock


async def test_an_idle_session_is_small_and_nothing_of_it_stays(tmp_path: Path) -> None:
    async with serving(tmp_path, ["Welcome."]) as server:
        ann = await Player.enter(server)
        for number in range(30):  # what is made once for all of them
            (await visit(server, number)).close()
        await until(lambda: server.gauges()["connections"] == 1)
        tasks, count = len(asyncio.all_tasks()), 150
        gc.collect()
        tracemalloc.start()
        try:
            sockets = [await visit(server, 1000 + number) for number in range(count)]
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] / count < MOST_BYTES
            assert len(asyncio.all_tasks()) - tasks <= 2 * count
            for sock in sockets:
                sock.sendall(frame(TEXT, b'{"t":"bye","d":{}}'))
                sock.close()
            await until(lambda: server.gauges()["connections"] == 1)
            await until(lambda: len(asyncio.all_tasks()) <= tasks)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] / count < MOST_BYTES / 8
        finally:
            tracemalloc.stop()
        assert (await ann.ask("heartbeat", {"n": 1}))["d"]["n"] == 1
