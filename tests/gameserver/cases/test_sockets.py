"""Cases 1 and 3 to 10: what arrives at the port, broken, endless, or never read."""

import asyncio
import contextlib
import gc
import struct
import tracemalloc
from pathlib import Path

import pytest

from gameserver.game import GameServer
from gameserver.guards import GuardedConnection
from tests.gameserver.cases.oracle import unharmed
from tests.gameserver.player import Player
from tests.gameserver.raw import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    RawClient,
    frame,
    narrow,
    upgrade_request,
)
from tests.gameserver.stage import SCENE, serving, until
from tests.gameserver.test_bad_input import IDENTIFY

JOIN = f'{{"t":"scene.join","id":1,"d":{{"scene":"{SCENE}"}}}}'.encode()
LONG = "A long story of the ford, the mill and the bell. " * 4

#: What no client may send, and the code that RFC 6455 has for it.
BROKEN = [
    *((frame(TEXT, b"{}", rsv=rsv), 1002) for rsv in range(1, 8)),
    *((frame(opcode), 1002) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)),
    *((frame(opcode, fin=False), 1002) for opcode in (PING, PONG, CLOSE)),
    *((frame(opcode, b"x" * 126), 1002) for opcode in (PING, PONG, CLOSE)),
    *(
        (frame(CLOSE, struct.pack("!H", code)), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)
    ),
    (frame(CLOSE, b"x"), 1002),
    (frame(0, b"{}"), 1002),
    (frame(0, b"{}", fin=False), 1002),
    (frame(TEXT, b"{", fin=False) + frame(BINARY, b"}"), 1002),
    (frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), 1002),
    (b"\x81\x02{}", 1002),
    (b"\x89\x00", 1002),
    (b"\x81\xff" + struct.pack("!Q", 1 << 63) + b"\0\0\0\0", 1009),
    (frame(CLOSE, struct.pack("!H", 1000) + b"\xff\xfe"), 1007),
    (frame(TEXT, b'"\xf0\x9f', fin=False) + frame(0, b'x"'), 1007),
]


async def test_each_broken_frame_ends_its_connection_alone(
    server: GameServer, caplog: pytest.LogCaptureFixture
) -> None:
    counters = {f"closes_{code}": [c for _, c in BROKEN].count(code) for code in (1002, 1007)}
    # They may all come back, with what they hold of a player's four seats.
    async with unharmed(server, moved=counters, caplog=caplog, bad_clients=0, away=4):
        for sent, code in BROKEN:
            client = await RawClient.upgraded(server)
            client.writer.write(frame(TEXT, IDENTIFY) + sent)
            assert await client.close_code() == code, sent
            client.drop()
    assert server.gauges()["connections_opened"] == len(BROKEN) + 1


async def test_a_length_without_end_costs_no_memory(
    server: GameServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight clients announce 2^62 bytes and begin to send them."""
    head = b"\x81\xff" + struct.pack("!Q", 1 << 62) + b"\0\0\0\0"
    async with unharmed(server, moved={"closes_1009": 8}, caplog=caplog, bad_clients=0):
        clients = [await RawClient.upgraded(server) for _ in range(8)]
        tracemalloc.start()
        try:
            for client in clients:
                client.writer.write(head)
                assert await client.close_code() == 1009
                with contextlib.suppress(ConnectionError):
                    for _ in range(16):
                        client.writer.write(b"x" * 65536)
                        await client.writer.drain()
                client.drop()
            await until(lambda: server.gauges()["connections"] == 1)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 512 * 1024
        finally:
            tracemalloc.stop()


async def test_a_crowd_of_fragment_floods_is_worked_off_bit_by_bit(
    server: GameServer, caplog: pytest.LogCaptureFixture
) -> None:
    flood = frame(TEXT, fin=False) + frame(0, fin=False) * 5000
    async with unharmed(server, moved={"closes_1009": 20}, caplog=caplog, bad_clients=0) as ann:
        clients = [await RawClient.upgraded(server) for _ in range(20)]
        for client in clients:
            client.writer.write(flood)
        # However much there is to read, others have their turn in between.
        assert (await ann.ask("heartbeat", {"n": 1}))["t"] == "heartbeat.ack"
        codes = await asyncio.gather(*(client.close_code() for client in clients))
        assert codes == [1009] * 20
        for client in clients:
            client.drop()


async def test_messages_in_floods_are_read_only_as_far_as_the_rate_allows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So many cost their sender the connection; what comes after is never looked at."""
    limits = {"messages_per_s": 20.0, "messages_burst": 40}
    guards = {"refused_messages": 100}
    async with (
        serving(tmp_path, [LONG], limits=limits, guards=guards) as server,
        unharmed(server, moved={"closes_4429": 10}, caplog=caplog, bad_clients=0, away=10),
    ):
        before = server.gauges()["frames_in"]
        beat = frame(TEXT, b'{"t":"heartbeat","d":{}}')
        clients = [await RawClient.upgraded(server) for _ in range(10)]
        for client in clients:
            client.writer.write(frame(TEXT, IDENTIFY.replace(b"eve", b"e%d" % id(client))))
            client.writer.write(beat * 3000)
        await until(lambda: server.gauges().get("closes_4429", 0) == 10)
        for client in clients:
            client.drop()
        assert server.gauges()["frames_in"] - before < 10 * 1000


async def test_slow_and_endless_handshakes_end_and_a_good_client_gets_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def drip(client: RawClient) -> None:
        for byte in b"GET /v1/ws HTTP/1.1\r\nHost: " + b"far.away.example" * 1000:
            if client.reader.at_eof() or client.writer.is_closing():  # ended, or was reset
                return
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.02)

    guards = {"open_timeout_s": 0.5}
    async with (
        serving(tmp_path, [LONG], guards=guards) as server,
        unharmed(server, moved={"connections_opened": 1}, caplog=caplog, bad_clients=0),
    ):
        clients = [await RawClient.connect(server) for _ in range(40)]
        dripping = [asyncio.create_task(drip(client)) for client in clients[:10]]
        for client in clients[10:20]:
            client.writer.write(b"GET /v1/ws HTTP/1.1\r\nHost: ")
        for client in clients[20:30]:
            client.writer.write(b"GET /v1/ws HTTP/1.1\r\n" + b"X: y\r\n" * 500)
        guest = await Player.dial(server, "guest")
        assert (await guest.identify())["t"] == "welcome"
        await until(lambda: server.gauges()["handshakes"] == 0)
        for client in clients[20:30]:
            assert (await client.head()).startswith("HTTP/1.1 431")
        for client in clients:
            client.drop()
        await asyncio.gather(*dripping)
        await guest.socket.close()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (
            "GET /elsewhere HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
            404,
        ),
        ("GET /v1/ws HTTP/1.0\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", 505),
        ("GET /v1/ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", 400),
        ("GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n", 426),
        ("BREW /healthz HTTP/1.1\r\nHost: x\r\n", 405),
    ],
)
async def test_an_upgrade_that_is_none_is_answered_in_plain_http(
    server: GameServer, request_text: str, status: int
) -> None:
    client = await RawClient.connect(server)
    answer = await client.request(request_text + "Connection: Upgrade\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 64,
        b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n",
    ],
)
async def test_what_is_no_http_at_all_ends_its_connection(
    server: GameServer, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with unharmed(server, moved={}, caplog=caplog, bad_clients=0):
        client = await RawClient.connect(server)
        client.writer.write(garbage)
        client.writer.write_eof()
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                await client.reader.read()
        client.drop()


async def test_a_flood_that_comes_right_behind_the_upgrade_is_cut_off_too(
    server: GameServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is all there before the server has begun to listen to its new client."""
    async with unharmed(server, moved={"closes_4429": 1}, caplog=caplog, bad_clients=0):
        client = await RawClient.connect(server)
        client.writer.write(upgrade_request() + frame(PONG) * 100)
        assert (await client.head()).startswith("HTTP/1.1 101")
        assert await client.close_code() == 4429
        client.drop()


async def test_readers_that_stop_leave_no_task_and_no_memory_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guards = {"stall_s": 0.3, "write_bytes": 1024, "send_buffer_bytes": 2048}
    stalls = {"stalled": 5, "closes_4441": 5}
    async with serving(tmp_path, [LONG], guards=guards) as server:
        bob = await Player.enter(server, "bob")
        async with unharmed(server, moved=stalls, caplog=caplog, bad_clients=0, away=5):
            clients = [await RawClient.upgraded(server, narrow(server)) for _ in range(5)]
            for number, client in enumerate(clients):
                wish = IDENTIFY.replace(b"eve", b"eve-%d" % number)
                client.writer.write(frame(TEXT, wish) + frame(TEXT, JOIN))
            await until(lambda: server.gauges()["members"] >= 7)
            for client in clients:
                client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await bob.flood(120)
            await until(lambda: server.gauges().get("stalled", 0) == 5)
            for client in clients:
                client.drop()


async def test_who_reads_slowly_is_not_taken_for_one_who_has_stopped(tmp_path: Path) -> None:
    """As long as something leaves its buffer; when nothing does any more, it is cut off."""
    guards = {"stall_s": 1000.0, "write_bytes": 1024, "send_buffer_bytes": 2048}
    async with serving(tmp_path, [LONG], guards=guards) as server:
        bob = await Player.enter(server, "bob")
        client = await RawClient.upgraded(server, narrow(server))
        client.writer.write(frame(TEXT, IDENTIFY) + frame(TEXT, JOIN))
        await bob.get("presence")
        reading = client.reader._transport  # type: ignore[attr-defined]
        reading.pause_reading()
        await bob.flood(120)
        held = next(c for c in server._connections if c._socket._stall is not None)._socket
        assert isinstance(held, GuardedConnection)
        full = held.transport.get_write_buffer_size()
        reading.resume_reading()
        await until(lambda: held.transport.get_write_buffer_size() < full)
        reading.pause_reading()
        if held._stall is not None:  # else it has read all there was
            held._unsent = full
            held._look_for_stall()
            assert not held.transport.is_closing()
        await bob.flood(400)
        await until(lambda: held._stall is not None)
        held._watch_for_stall()
        held._look_for_stall()
        assert held.transport.is_closing()
        assert server.gauges()["closes_4441"] == 1
        client.drop()
