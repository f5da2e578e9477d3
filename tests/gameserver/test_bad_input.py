"""What broken clients send: an answer or a close on that connection, and nowhere else."""

import json
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.raw import BINARY, CLOSE, PING, TEXT, RawClient, frame
from tests.gameserver.stage import SCENE, serving, until
from tests.gameserver.test_commands import messages

IDENTIFY = json.dumps({"t": "identify", "d": {"player": "eve"}}).encode()


@asynccontextmanager
async def bystander(server: GameServer) -> AsyncIterator[Player]:
    """Somebody in the scene for whom nothing may change."""
    player = await Player.enter(server, "bystander")
    yield player
    answer = await player.ask("heartbeat", {"n": 7})
    assert answer["d"]["n"] == 7
    turn = (await player.say("Still here?"), await player.get("npc.turn.end"))[1]["d"]
    assert player.heard(turn["turn"]) == turn["text"]


@pytest.mark.parametrize(
    ("bytes_sent", "code"),
    [
        (b"\x81\x02{}", 1002),  # not masked
        (frame(TEXT, b"{}", rsv=4), 1002),  # compressed, though nothing was agreed
        (frame(3), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(0, b"{}"), 1002),  # a continuation of nothing
        (frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), 1002),
        (frame(CLOSE, b"x"), 1002),
        (frame(CLOSE, struct.pack("!H", 1005)), 1002),
        (frame(TEXT, b"\xff\xfe"), 1007),
        (frame(TEXT, b'"\xc0\xaf"'), 1007),  # overlong
        (frame(TEXT, b'"\xed\xa0\x80"'), 1007),  # a surrogate
        (frame(TEXT, b'"\xf4\x90\x80\x80"'), 1007),  # beyond Unicode
        (frame(TEXT, b" " * 70_000), 1009),
        (b"\x81\xff" + struct.pack("!Q", 1 << 62) + b"\0\0\0\0", 1009),
        (frame(TEXT, fin=False) + frame(0, fin=False) * 5000, 1009),
        (frame(BINARY, b"{}"), 1003),
    ],
)
async def test_broken_frames_close_their_connection(
    server: GameServer, bytes_sent: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with bystander(server):
        client = await RawClient.upgraded(server)
        client.writer.write(frame(TEXT, IDENTIFY) + bytes_sent)
        assert await client.close_code() == code
        client.drop()
        await until(lambda: server.gauges()["connections"] == 1)
    assert not caplog.records


async def test_a_binary_frame_is_told_why_before_the_close(server: GameServer) -> None:
    player = await Player.dial(server)
    await player.socket.send(b"{}")
    error = (await player.get("error"))["d"]
    assert (error["code"], error["fatal"]) == ("bad_frame", True)
    assert await player.closed() == 1003


async def test_a_frame_that_is_too_large_is_told_its_limit(server: GameServer) -> None:
    player = await Player.enter(server)
    await player.socket.send('"' + "x" * 32_766 + '"')  # just as large as allowed
    assert (await player.get("error"))["d"]["fatal"] is False
    await player.socket.send('"' + "x" * 32_767 + '"')
    error = (await player.get("error"))["d"]
    assert (error["code"], error["limit"], error["fatal"]) == ("too_large", 32_768, True)
    assert await player.closed() == 1009


async def test_a_character_cut_across_fragments_is_whole_again(server: GameServer) -> None:
    client = await RawClient.upgraded(server)
    beat = '{"t":"heartbeat","id":1,"d":{"n":1,"x":"🐉"}}'.encode()
    cut = beat.index("🐉".encode()) + 2
    client.writer.write(
        frame(TEXT, IDENTIFY) + frame(TEXT, beat[:cut], fin=False) + frame(0, beat[cut:])
    )
    answers = [json.loads((await client.frame())[1]) for _ in range(3)]
    assert answers[-1]["t"] == "heartbeat.ack"
    client.drop()


async def test_many_fragments_are_one_message(server: GameServer) -> None:
    client = await RawClient.upgraded(server)
    client.writer.write(
        frame(TEXT, IDENTIFY, fin=False) + frame(0, fin=False) * 4000 + frame(0, b" ")
    )
    await client.frame()
    assert json.loads((await client.frame())[1])["t"] == "welcome"
    client.drop()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[" * 32_000, "too_deep"),
        ('{"t":"bye","d":{"x":' + "[" * 20 + "]" * 20 + "}}", "too_deep"),
        ('{"t":"bye","d":{"x":1e400}}', "bad_json"),
        ('{"t":"bye","d":{"x":' + "7" * 40 + "}}", "bad_field"),
        ("NaN", "bad_json"),
        ('{"t":"bye","t":"bye"}', "bad_json"),
        ("\ufeff{}", "bad_json"),
        ('{"t":"by\x02e"}', "bad_json"),
        ('{"t":"bye","d":{"x":"\\ud800"}}', "bad_field"),
        ('{"t":"say","id":1,"d":{"text":"\\u0000"}}', "bad_field"),
        ("not json", "bad_json"),
    ],
)
async def test_the_third_bad_message_is_fatal(server: GameServer, text: str, code: str) -> None:
    async with bystander(server):
        player = await Player.enter(server, "eve")
        for number in (1, 2, 3):
            await player.socket.send(text.replace('"id":1', f'"id":{number + 10}'))
            error = (await player.get("error"))["d"]
            assert (error["code"], error["fatal"]) == (code, number == 3)
            if number < 3:
                await player.send("heartbeat", {"n": number})
                await player.get("heartbeat.ack", n=number)
        assert await player.closed() == 4400


async def test_bad_messages_far_apart_are_forgiven(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], guards={"bad_window_s": 0.05}) as server:
        player = await Player.enter(server)
        for _ in range(5):
            await player.socket.send("{")
            assert (await player.get("error"))["d"]["fatal"] is False
            await player.quiet(0.06)


async def test_unknown_types_are_answered_and_never_fatal(server: GameServer) -> None:
    player = await Player.enter(server)
    for number in range(5):
        answer = await player.ask(f"dance.{number}", {"x": 1})
        assert answer["d"]["code"] == "unknown_type"
    assert (await player.ask("heartbeat"))["t"] == "heartbeat.ack"


async def test_an_empty_line_is_refused_and_forgiven(server: GameServer) -> None:
    player = await Player.enter(server)
    for _ in range(5):
        assert (await player.say("  "))["d"]["code"] == "bad_field"
    assert (await player.say("x"))["t"] == "say.accepted"


async def test_text_limits_name_limit_and_actual(server: GameServer) -> None:
    player = await Player.enter(server)
    long = (await player.say("é" * 2001))["d"]
    assert (long["code"], long["limit"], long["actual"]) == ("too_large", 2000, 2001)
    # One token is one byte here: 1,501 tokens.
    heavy = (await player.say("x" * 1501))["d"]
    assert (heavy["code"], heavy["limit"], heavy["actual"]) == ("context_exceeded", 1500, 1501)
    assert (await player.say("x" * 1500))["t"] == "say.accepted"


async def test_messages_beyond_the_rate_are_refused_and_then_fatal(tmp_path: Path) -> None:
    limits = {"messages_per_s": 1.0, "messages_burst": 5}
    guards = {"refused_messages": 10}
    async with serving(tmp_path, ["x"], limits=limits, guards=guards) as server:
        player = await Player.dial(server)
        await player.identify()
        for number in range(4):
            assert (await player.ask("heartbeat", {"n": number}))["t"] == "heartbeat.ack"
        refused = await player.ask("heartbeat")
        assert refused["d"]["code"] == "rate_limited"
        assert 0 < refused["d"]["retry_ms"] <= 1000
        for _ in range(9):
            await player.send("heartbeat")
        assert await player.closed() == 4429
        assert player.log[-1]["d"] == {
            "code": "rate_limited",
            "msg": "too many messages",
            "fatal": True,
            "retry_ms": player.log[-1]["d"]["retry_ms"],
        }


async def test_bytes_beyond_the_rate_are_refused(tmp_path: Path) -> None:
    limits = {"bytes_per_s": 1000.0, "bytes_burst": 4000}
    async with serving(tmp_path, ["x"], limits=limits) as server:
        player = await Player.dial(server)
        await player.identify()
        answers = [await player.ask("heartbeat", {"x": "y" * 1000}) for _ in range(4)]
        assert [answer["t"] for answer in answers] == ["heartbeat.ack"] * 3 + ["error"]


async def test_says_beyond_their_rate_are_refused(tmp_path: Path) -> None:
    limits = {"says_per_s": 1.0, "says_burst": 3}
    async with serving(tmp_path, ["x"], limits=limits) as server:
        player = await Player.enter(server)
        for _ in range(3):
            assert (await player.say())["t"] == "say.accepted"
            await player.get("npc.turn.end")
        refused = await player.say()
        assert refused["d"]["code"] == "rate_limited"
        assert refused["d"]["retry_ms"] <= 1000
        assert refused["st"] == SCENE
        assert (await player.ask("heartbeat"))["t"] == "heartbeat.ack"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.text(max_size=40) | messages.map(json.dumps), max_size=8))
async def test_no_input_harms_anybody_else(server: GameServer, frames: list[str]) -> None:
    eve = await Player.enter(server, "eve")
    opened = server.gauges()["connections"]
    for text in frames:
        try:
            await eve.socket.send(text.encode("utf-8", "replace").decode())
        except Exception:
            break  # closed for good reasons
    eve.socket.transport.abort()
    await until(lambda: server.gauges()["connections"] == opened - 1)
    assert server.gauges()["sessions"] == server.gauges()["sessions_away"] <= 4
    assert "errors_internal" not in server.gauges()
