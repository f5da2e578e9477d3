"""From `hello` to `welcome`: versions, identity, time limits."""

import math
from pathlib import Path
from typing import Any

import pytest

from gameserver.game import GameServer
from gameserver.protocol import Close
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving


async def test_the_server_speaks_first(server: GameServer) -> None:
    player = await Player.dial(server)
    hello = (await player.receive())["d"]
    assert hello["proto"] == {"major": 1, "minor": 0}
    assert hello["hb_ms"] == 20_000
    assert hello["identify_timeout_ms"] == 5000
    assert hello["limits"]["frame_bytes"] == 32 * 1024
    assert hello["limits"]["say_chars"] == 2000
    assert hello["limits"]["say_tokens"] == 1500
    assert {"whisper", "prefill"} <= set(hello["features"])
    assert hello["node"]
    assert hello["now"] > 1_700_000_000_000


async def test_welcome_has_all_a_client_needs(server: GameServer) -> None:
    player = await Player.dial(server)
    await player.send(
        "identify",
        {"player": "ann", "auth": {"kind": "none"}, "caps": ["whisper", "magic"], "need": []},
        id=5,
    )
    welcome = await player.get("welcome")
    body = welcome["d"]
    assert welcome["re"] == 5
    assert body["scenes"] == [{"id": SCENE, "title": "The Inn"}]
    assert body["player"] == "ann"
    assert body["caps"] == ["whisper"]
    assert body["resumed"] is False
    assert "resume_miss" not in body
    assert body["session"]
    assert body["resume_token"]
    assert body["limits"]["scenes_per_session"] == 4
    assert "st" not in welcome


async def test_a_resume_gets_a_fresh_session_and_a_reason(server: GameServer) -> None:
    player = await Player.dial(server)
    welcome = await player.identify(
        resume={"session": "s-1", "token": "x", "cursors": [{"st": "inn", "s": 4}]}
    )
    assert welcome["d"]["resumed"] is False
    assert welcome["d"]["resume_miss"]


@pytest.mark.parametrize(
    ("wish", "code", "close"),
    [
        ({"auth": {"kind": "jwt", "token": "x"}}, "auth_failed", 4401),
        ({"auth": {"kind": "key", "token": "x"}}, "auth_failed", 4401),
        ({"auth": {"kind": "magic"}}, "auth_failed", 4401),
        ({"need": ["telepathy"]}, "version", 4426),
        ({"proto": {"major": 2, "minor": 0}}, "version", 4426),
    ],
)
async def test_fatal_refusals_come_before_the_close(
    server: GameServer, wish: dict[str, Any], code: str, close: int
) -> None:
    player = await Player.dial(server)
    await player.send("identify", {"player": "ann", "auth": {"kind": "none"}, **wish}, id=9)
    error = await player.get("error")
    assert (error["d"]["code"], error["d"]["fatal"], error["re"]) == (code, True, 9)
    assert await player.closed() == close
    assert server.gauges()["sessions"] == 0


@pytest.mark.parametrize(
    "wish", [{"player": ""}, {"player": "a b"}, {"player": "x" * 65}, {"player": 7}, {"name": "\0"}]
)
async def test_a_bad_identity_may_be_corrected(server: GameServer, wish: dict[str, Any]) -> None:
    player = await Player.dial(server)
    await player.send("identify", {"player": "ann", "auth": {"kind": "none"}, **wish})
    error = await player.get("error")
    assert (error["d"]["code"], error["d"]["fatal"]) == ("bad_field", False)
    assert (await player.identify())["d"]["player"] == "ann"


async def test_no_command_works_before_identify(server: GameServer) -> None:
    player = await Player.dial(server)
    commands = ["heartbeat", "scene.join", "say", "npc.interrupt", "history.get", "bye", "dance"]
    for number, t in enumerate(commands):
        await player.send(t, {"scene": SCENE, "text": "x"}, id=number)
        error = await player.get("error")
        assert (error["d"]["code"], error["re"]) == ("not_identified", number)
        assert error["d"]["fatal"] is False
    assert server.gauges()["sessions"] == 0
    assert (await player.identify())["t"] == "welcome"
    assert server.gauges()["sessions"] == 1


async def test_a_second_identify_is_an_error_and_a_third_is_fatal(server: GameServer) -> None:
    player = await Player.enter(server)
    await player.send("identify", {"player": "bob"})
    assert (await player.get("error"))["d"]["code"] == "already_identified"
    assert (await player.ask("heartbeat", {"n": 1}))["t"] == "heartbeat.ack"
    assert server.gauges()["sessions"] == 1
    await player.send("identify", {"player": "bob"})
    assert (await player.get("error", code="already_identified"))["d"]["fatal"] is True
    assert await player.closed() == 4400
    assert server.gauges()["sessions"] == 0


async def test_no_identify_in_time(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], guards={"identify_timeout_s": 0.05}) as server:
        player = await Player.dial(server)
        error = await player.get("error")
        assert (error["d"]["code"], error["d"]["fatal"]) == ("not_identified", True)
        assert await player.closed() == 4408
        late = await Player.dial(server)
        await late.identify()
        await late.quiet(0.1)
        assert (await late.ask("heartbeat"))["t"] == "heartbeat.ack"


async def test_sessions_of_one_player_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], limits={"sessions_per_player": 2}) as server:
        first, second = [await Player.enter(server) for _ in range(2)]
        third = await Player.dial(server)
        await third.send("identify", {"player": "ann"})
        error = (await third.get("error"))["d"]
        assert (error["code"], error["limit"], error["actual"]) == ("rate_limited", 2, 3)
        assert error["retry_ms"] > 0
        assert await third.closed() == 4429
        await second.send("bye")
        assert await second.closed() == 1000
        fourth = await Player.dial(server)
        assert (await fourth.identify())["t"] == "welcome"
        assert (await first.ask("heartbeat"))["t"] == "heartbeat.ack"


async def test_a_display_name_is_shown_to_others(server: GameServer) -> None:
    ann = await Player.enter(server)
    bob = await Player.dial(server, "bob")
    await bob.identify(name="Bob\u202e the \n Bold")
    await bob.ask("scene.join", {"scene": SCENE})
    change = (await ann.get("presence"))["d"]["changes"][0]
    assert change == {
        "player": "bob",
        "what": "join",
        "meta": {"name": "Bob the Bold", "role": "player"},
    }


async def test_while_nothing_can_be_kept_who_comes_is_told_to_come_again(
    server: GameServer,
) -> None:
    journal = server._journal
    journal.written, journal.deadline = journal.durable + 1, 0.0
    player = await Player.dial(server)
    await player.get("hello")
    await player.send("identify", {"player": "ann", "auth": {"kind": "none"}}, id=5)
    error = await player.get("error")
    assert (error["re"], error["d"]["code"], error["d"]["fatal"]) == (5, "busy", True)
    assert error["d"]["retry_ms"] > 0
    assert await player.closed() == Close.OVERLOADED
    journal.written, journal.deadline = journal.durable, math.inf
