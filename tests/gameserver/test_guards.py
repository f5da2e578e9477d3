"""Sockets that misbehave are cut off; everybody else goes on."""

import asyncio
import gc
import json
import resource
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from tests.gameserver.player import Player
from tests.gameserver.raw import CLOSE, PING, PONG, TEXT, RawClient, frame, narrow
from tests.gameserver.stage import SCENE, serving, until
from tests.gameserver.test_bad_input import IDENTIFY

JOIN = f'{{"t":"scene.join","id":1,"d":{{"scene":"{SCENE}"}}}}'.encode()
LONG = "A long story of the ford, the mill and the bell. " * 8


async def test_a_reader_that_stops_is_cut_off_and_nobody_waits_for_it(tmp_path: Path) -> None:
    guards = {"stall_s": 0.2, "write_bytes": 1024, "send_buffer_bytes": 2048}
    async with serving(tmp_path, [LONG], guards=guards) as server:
        ann = await Player.enter(server)
        stalled = await RawClient.upgraded(server, narrow(server))
        stalled.writer.write(frame(TEXT, IDENTIFY) + frame(TEXT, JOIN))
        await ann.get("presence")
        stalled.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await ann.say()
        await ann.flood(80)
        await until(lambda: server.gauges().get("stalled", 0) == 1)
        assert server.gauges()["closes_4441"] == 1
        left = await ann.get("presence")
        assert left["d"]["changes"][0]["what"] == "away"
        end = (await ann.get("npc.turn.end"))["d"]
        assert end["status"] == "completed"
        assert ann.heard(end["turn"]) == end["text"]
        assert server.gauges()["sessions_away"] == 1
        stalled.drop()


async def test_a_ping_flood_without_reading_is_cut_off_and_memory_stays(tmp_path: Path) -> None:
    limits = {"control_frames_per_s": 1e6, "control_frames_burst": 10_000_000}
    guards = {"flood_bytes": 64 * 1024, "stall_s": 30.0, "send_buffer_bytes": 4096}
    async with serving(tmp_path, ["x"], limits=limits, guards=guards) as server:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        client = await RawClient.upgraded(server)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        pings = frame(PING, b"x" * 125) * 100
        began = time.monotonic()
        with suppress(ConnectionError):
            while not server.gauges().get("floods"):
                client.writer.write(pings)
                await client.writer.drain()
                await asyncio.sleep(0)
        assert time.monotonic() - began < 2
        await until(lambda: server.gauges()["connections"] == 0)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
        client.drop()


@pytest.mark.parametrize("opcode", [PING, PONG])
async def test_too_many_control_frames_are_fatal(tmp_path: Path, opcode: int) -> None:
    limits = {"control_frames_per_s": 1.0, "control_frames_burst": 5}
    guards = {"close_timeout_s": 30.0, "linger_s": 0.01}
    async with serving(tmp_path, ["x"], limits=limits, guards=guards) as server:
        client = await RawClient.upgraded(server)
        began = time.monotonic()
        client.writer.write(frame(TEXT, IDENTIFY) + frame(opcode) * 50)
        texts = []
        while True:
            kind, payload = await client.frame()
            if kind == 8:
                break
            if kind == TEXT:
                texts.append(payload)
        assert payload[:2] == (4429).to_bytes(2, "big")
        assert b'"rate_limited"' in texts[-1]
        # The client never answers the close: it is cut off all the same.
        await until(lambda: server.gauges()["connections"] == 0)
        assert time.monotonic() - began < 1
        assert b'"fatal":true' in texts[-1]
        assert server.gauges()["sessions"] == 0


async def test_a_few_control_frames_are_fine(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"]) as server:
        ann = await Player.enter(server)
        for _ in range(5):
            await (await ann.socket.ping())
        assert (await ann.ask("heartbeat"))["t"] == "heartbeat.ack"


async def test_the_server_pings_and_gives_up_the_silent(tmp_path: Path) -> None:
    guards = {"ping_interval_s": 0.1, "ping_timeout_s": 0.6, "silence_s": 10.0}
    async with serving(tmp_path, ["x"], guards=guards) as server:
        ann = await Player.enter(server)  # its library answers pings
        silent = await RawClient.upgraded(server)
        silent.writer.write(frame(TEXT, IDENTIFY))
        began = time.monotonic()
        seen = []
        while True:
            kind, payload = await silent.frame()
            seen.append(kind)
            if kind == 8:
                break
        assert payload[:2] == (4440).to_bytes(2, "big")
        assert PING in seen
        assert 0.6 < time.monotonic() - began < 3
        assert server.gauges()["sessions_away"] == 1
        assert (await ann.ask("heartbeat"))["t"] == "heartbeat.ack"


async def test_any_frame_is_a_sign_of_life(tmp_path: Path) -> None:
    guards = {"ping_interval_s": 0.05, "ping_timeout_s": 0.5, "silence_s": 1.0}
    async with serving(tmp_path, ["x"], guards=guards) as server:
        client = await RawClient.upgraded(server)  # answers no ping
        client.writer.write(frame(TEXT, IDENTIFY))
        for _ in range(16):
            client.writer.write(frame(TEXT, b'{"t":"heartbeat","d":{}}'))
            await asyncio.sleep(0.05)
        assert server.gauges()["sessions"] == 1
        assert await client.close_code() == 4440


async def test_reading_pauses_for_those_who_send_faster_than_is_read(tmp_path: Path) -> None:
    guards = {"refused_messages": 1_000_000}
    limits = {"messages_per_s": 10.0, "messages_burst": 10}
    async with serving(tmp_path, ["x"], limits=limits, guards=guards) as server:
        ann = await Player.enter(server)
        floods = [await RawClient.upgraded(server) for _ in range(10)]
        for client in floods:
            client.writer.write(frame(TEXT, IDENTIFY) + frame(TEXT, b"{}") * 5000)
        delays = []
        for _ in range(5):
            began = time.monotonic()
            await ann.ask("heartbeat")
            delays.append(time.monotonic() - began)
        assert sorted(delays)[2] < 0.25
        await until(lambda: server.gauges().get("closes_4400", 0) == 10)
        await until(lambda: server.gauges()["connections"] == 1)
        for client in floods:
            client.drop()


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(3), 1002),
        (frame(TEXT, b"\xff"), 1007),
        (b"\x81\xff" + (1 << 40).to_bytes(8, "big") + b"mask", 1009),
        (frame(TEXT, fin=False) + frame(0, fin=False) * 5000, 1009),
        (frame(TEXT, fin=False) + frame(0, b"12", fin=False) * 5000, 1009),
    ],
)
async def test_who_breaks_the_protocol_is_gone_soon_whatever_it_does_then(
    tmp_path: Path, bad: bytes, code: int
) -> None:
    async with serving(tmp_path, ["x"], guards={"close_timeout_s": 0.2}) as server:
        client = await RawClient.upgraded(server)
        client.writer.write(frame(TEXT, IDENTIFY) + bad)
        while (await client.frame())[0] != CLOSE:
            pass

        def gone() -> bool:
            if not client.writer.is_closing():
                client.writer.write(b"more")  # a sign of life, if anybody took it for one
            return server.gauges()["connections"] == 0

        await until(gone)
        assert server.gauges()[f"closes_{code}"] == 1
        client.drop()


async def test_pieces_of_a_message_are_kept_as_nothing_but_their_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"]) as server:
        clients = [await RawClient.upgraded(server) for _ in range(10)]
        tracemalloc.start()
        try:
            for client in clients:
                client.writer.write(frame(TEXT, fin=False) + frame(0, fin=False) * 4000)
            wanted = 10 * len(frame(0, fin=False)) * 4000
            await until(lambda: server.gauges()["bytes_in"] >= wanted)
            gc.collect()
            # Each of 40,000 takes at least 64 bytes where all are kept.
            assert tracemalloc.get_traced_memory()[0] < 40_000 * 10
        finally:
            tracemalloc.stop()
        for client in clients:
            client.writer.write(frame(0, b"{}"))
            assert json.loads((await client.frame())[1])["t"] == "hello"
            assert json.loads((await client.frame())[1])["d"]["code"] == "bad_field"
            client.drop()
