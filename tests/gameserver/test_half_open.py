"""Clients that are half there: who vanishes, stops or trickles is let go of within the time that
settings promise, holds nothing meanwhile that grows, and may come back to its session."""

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import subprocess
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gameserver.game import GameServer
from gameserver.protocol import Close
from tests.gameserver.cases.oracle import Level
from tests.gameserver.player import Player
from tests.gameserver.proxy import Proxy
from tests.gameserver.raw import BINARY, TEXT, RawClient, frame, narrow, upgrade_request
from tests.gameserver.stage import SCENE, serving, until

#: All times that matter here, short; the system's own is out of the way.
GUARDS = {
    "identify_timeout_s": 0.3,
    "open_timeout_s": 0.3,
    "ping_interval_s": 0.1,
    "ping_timeout_s": 0.4,
    "stall_s": 0.3,
    "close_timeout_s": 0.2,
    "linger_s": 0.01,
    "tcp_user_timeout_s": 100.0,
    "write_bytes": 4096,
    "send_buffer_bytes": 4096,
}
#: Longest way from falling silent to being gone, and as much again for a busy machine.
PROMISED_S = 2 * (0.1 + 0.4 + 0.3 + 0.2 + 0.01)
WORDS = "Once, when the river was low, a miller's girl counted every stone of the ford. " * 3


def message(t: str, number: int | None = None, **d: Any) -> bytes:
    return frame(TEXT, json.dumps({"t": t, "d": d, "id": number}).encode())


@contextlib.asynccontextmanager
async def stage(folder: Path, **guards: float) -> AsyncIterator[tuple[GameServer, Player]]:
    """A server, and Bob, who is well."""
    async with serving(folder, [WORDS], step_ms=1.0, guards={**GUARDS, **guards}) as server:
        yield server, await Player.enter(server, "bob")


async def in_scene(server: GameServer, bob: Player, sock: socket.socket) -> RawClient:
    """Eve, who will have an answer spoken to her."""
    client = await RawClient.upgraded(server, sock)
    client.writer.write(message("identify", player="eve") + message("scene.join", 1, scene=SCENE))
    client.writer.write(message("say", 2, npc="mira", text="Well?"))
    await bob.get("player.said")
    return client


async def gone(server: GameServer, before: Level, *, away: int, within: float = PROMISED_S) -> None:
    """Everything that a client held is free again, but for a seat that is kept."""
    before.sessions += away
    began = time.monotonic()
    await until(lambda: Level.of(server).holds_at_most(before))
    assert time.monotonic() - began < within
    assert server.gauges()["sessions_away"] == away


@pytest.mark.parametrize("how", ["swallowed", "deaf", "half_closed", "mid_frame"])
async def test_who_is_half_there_is_let_go_of_and_may_come_back(tmp_path: Path, how: str) -> None:
    async with stage(tmp_path) as (server, bob):
        before = Level.of(server)
        line = await Proxy(server.port).start()
        client = await in_scene(server, bob, narrow(line if how == "swallowed" else server))
        welcome = b""
        while b'"welcome"' not in welcome:
            _, welcome = await client.frame()
        if how == "swallowed":
            line.open = False
        elif how == "mid_frame":
            client.writer.write(message("heartbeat", n=1)[:9])
        else:
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await bob.flood(100)
            if how == "half_closed":
                client.writer.write_eof()
        began = time.monotonic()
        # Whatever happens meanwhile, is not kept for it.
        tracemalloc.start()
        held = []
        for _ in range(2):
            for _ in range(20):
                await bob.flood(40)
                bob.log.clear()
                bob._read = 0
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert held[1] - held[0] < 256 * 1024, "of 800 kB nothing beyond the scene's window"
        await until(lambda: server.gauges()["sessions_away"] == 1)
        await until(lambda: server.gauges()["connections"] == 1)
        assert time.monotonic() - began < PROMISED_S
        client.drop()
        await line.stop()
        await gone(server, before, away=1)
        told = json.loads(welcome)["d"]
        again = await Player.dial(server, "eve")
        resume = {"session": told["session"], "token": told["resume_token"]}
        assert (await again.identify(resume=resume))["d"]["resumed"] is True
        assert (await again.get("scene.snapshot"))["st"] == SCENE


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        message("identify", player="not an id"),
        message("identify", player="eve", name="\0"),
        message("identify", player="eve", name="\0") * 2,
    ],
)
async def test_who_is_refused_without_a_close_has_no_longer_to_identify(
    tmp_path: Path, sent: bytes
) -> None:
    """One that answers pings is never silent."""
    async with stage(tmp_path, ping_interval_s=30.0) as (server, _):
        before = Level.of(server)
        client = await RawClient.upgraded(server)
        client.writer.write(sent)
        async with asyncio.timeout(PROMISED_S):
            assert await client.close_code() == Close.NOT_IDENTIFIED
        client.drop()
        await gone(server, before, away=0)


async def test_who_was_refused_may_still_identify_in_time(tmp_path: Path) -> None:
    async with stage(tmp_path) as (server, _):
        eve = await Player.dial(server, "eve")
        await eve.send("identify", {"player": "eve", "name": "\0"})
        assert (await eve.get("error"))["d"]["fatal"] is False
        assert (await eve.identify())["t"] == "welcome"
        await eve.quiet(0.4)
        assert (await eve.ask("heartbeat"))["t"] == "heartbeat.ack"


async def trickle(sock: socket.socket) -> None:
    """Read a little now and then: never nothing for as long as a stall."""
    while True:
        with contextlib.suppress(BlockingIOError):
            sock.recv(1000)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("why", ["its_fault", "half_closed", "server_ends"])
async def test_a_connection_that_is_closed_is_gone_soon_however_slowly_it_is_read(
    tmp_path: Path, why: str
) -> None:
    guards = {"ping_interval_s": 30.0, "stall_s": 0.6, "write_bytes": 1 << 16}
    async with stage(tmp_path, **guards) as (server, bob):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Or the kernel would tell of what was read in large steps only.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        sock.connect(("127.0.0.1", server.port))
        sock.setblocking(False)
        client = await in_scene(server, bob, sock)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await bob.flood(200)
        reading = asyncio.create_task(trickle(sock))
        await asyncio.sleep(1.0)
        assert server.gauges()["connections"] == 2, "who reads slowly is kept"
        began = time.monotonic()
        if why == "its_fault":
            client.writer.write(frame(BINARY, b"{}"))
        elif why == "half_closed":
            client.writer.write_eof()
        else:
            async with asyncio.timeout(20):
                await server.close()
        await until(lambda: server.gauges()["connections"] <= 1)
        assert time.monotonic() - began < PROMISED_S
        assert not reading.done()
        reading.cancel()
        client.drop()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of this machine, with its key."""
    made = tmp_path / "certificate.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -out {made} -keyout {made}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return made


async def test_who_reads_slowly_is_kept_with_tls_as_well(tmp_path: Path, certificate: Path) -> None:
    """What waits below TLS goes out in large steps: that nothing leaves the buffer above it for a
    while does not mean that nothing is read."""
    tls = {"certificate": str(certificate), "key": str(certificate)}
    guards = {**GUARDS, "ping_interval_s": 60.0, "stall_s": 0.4}
    async with serving(tmp_path, [WORDS], guards=guards, tls=tls) as server:
        trust = ssl.create_default_context(cafile=str(certificate))
        trust.check_hostname = False
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)

        def come() -> ssl.SSLSocket:
            sock.connect(("127.0.0.1", server.port))
            slow = trust.wrap_socket(sock)
            slow.sendall(upgrade_request())
            slow.sendall(message("identify", player="eve"))
            slow.sendall(message("scene.join", 1, scene=SCENE))
            return slow

        def crawl(slow: ssl.SSLSocket, seconds: float) -> None:
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                slow.recv(1000)
                time.sleep(0.05)

        slow = await asyncio.to_thread(come)
        await until(lambda: server.gauges()["members"] == 1)
        actor = server._world.actors[SCENE]
        for _ in range(60):
            actor.happenings.happen("thunder", "x" * 4000)
            await asyncio.sleep(0)
        await asyncio.to_thread(crawl, slow, 2.0)
        assert server.gauges()["connections"] == 1
        assert server.gauges().get("stalled", 0) == 0
        began = time.monotonic()  # and once it stops, it is gone
        await until(lambda: server.gauges().get("stalled", 0) == 1)
        assert time.monotonic() - began < PROMISED_S
        slow.close()


async def test_who_connects_with_tls_and_says_nothing_is_gone_as_soon_as_without(
    tmp_path: Path, certificate: Path
) -> None:
    tls = {"certificate": str(certificate), "key": str(certificate)}
    async with serving(tmp_path, [WORDS], guards=GUARDS, tls=tls) as server:
        began = time.monotonic()
        silent = await RawClient.connect(server)
        half = await RawClient.connect(server)
        half.writer.write(b"\x16\x03\x01\x02\x00\x01")
        for client in (silent, half):
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionError):
                    assert await client.reader.read() == b""
        assert time.monotonic() - began < PROMISED_S
        silent.drop()
        half.drop()
