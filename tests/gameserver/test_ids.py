"""A command with an id runs once, and is answered the same each time."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from gameserver import protocol
from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving


async def raw_answer(player: Player, text: str) -> str:
    await player.socket.send(text)
    raw = await player.socket.recv()
    assert isinstance(raw, str)
    return raw


async def test_the_same_id_and_body_get_the_old_answer_byte_for_byte(server: GameServer) -> None:
    ann = await Player.enter(server)
    line = '{"t":"say","id":9,"st":"inn","d":{"npc":"mira","text":"hi"}}'
    reordered = '{ "id": 9, "d": {"text":"hi", "npc":"mira"}, "st": "inn", "t": "say" }'
    first = await raw_answer(ann, line)
    await ann.get("npc.turn.end")
    await ann.get("npc.state", activity="idle")
    assert await raw_answer(ann, line) == first
    assert await raw_answer(ann, reordered) == first
    await ann.quiet(0.05)
    assert ann.types().count("player.said") == 1
    assert server.gauges()["duplicates"] == 2


@pytest.mark.parametrize("d", [f'{{"scene":"{SCENE}"}}', '{"scene":"moon"}', '{"scene":7}', "7"])
async def test_joins_and_refusals_are_remembered_too(
    server: GameServer, monkeypatch: pytest.MonkeyPatch, d: str
) -> None:
    """Also those that were refused before anything but their id was read."""
    clock = itertools.count(1_000_000)
    monkeypatch.setattr(protocol, "now_ms", lambda: next(clock))  # so that no answer comes twice
    ann = await Player.enter(server)
    join = f'{{"t":"scene.join","id":5,"d":{d}}}'
    first = await raw_answer(ann, join)
    assert '"re":5' in first
    assert await raw_answer(ann, join) == first


async def test_the_same_id_with_another_body_is_refused(server: GameServer) -> None:
    ann = await Player.enter(server)
    await ann.ask("flow.set", {"delta_ms": 50}, id=20)
    others: list[tuple[str, dict[str, Any]]] = [
        ("flow.set", {"delta_ms": 51}),
        ("say", {"npc": "mira", "text": "x"}),
    ]
    for t, d in others:
        refused = await ann.ask(t, d, id=20)
        assert refused["d"]["code"] == "duplicate_id"
    assert (await ann.ask("flow.set", {"delta_ms": 50}, id=20))["t"] == "ack"


async def test_ids_rise(server: GameServer) -> None:
    ann = await Player.enter(server)
    await ann.ask("flow.set", {}, id=20)
    refused = await ann.ask("flow.set", {}, id=19)
    assert (refused["d"]["code"], refused["re"]) == ("bad_field", 19)
    assert (await ann.ask("flow.set", {}, id=4_294_967_295))["t"] == "ack"


async def test_commands_that_change_something_need_an_id(server: GameServer) -> None:
    ann = await Player.enter(server)
    await ann.send("say", {"npc": "mira", "text": "x"}, st=SCENE)
    error = await ann.get("error")
    assert error["d"]["code"] == "bad_field"
    assert "re" not in error
    await ann.send("history.get", {"npc": "mira"}, st=SCENE)
    assert "re" not in await ann.get("history")


async def test_only_the_newest_answers_are_kept(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], flow={"answers": 3}) as server:
        ann = await Player.enter(server)
        for number in range(10, 15):
            await ann.ask("heartbeat", {"n": number}, id=number)
        assert (await ann.ask("heartbeat", {"n": 12}, id=12))["t"] == "heartbeat.ack"
        assert (await ann.ask("heartbeat", {"n": 11}, id=11))["d"]["code"] == "bad_field"


async def test_each_session_counts_for_itself(server: GameServer) -> None:
    first, second = await Player.enter(server), await Player.enter(server)
    await first.ask("flow.set", {"delta_ms": 50}, id=100)
    assert (await second.ask("flow.set", {"delta_ms": 60}, id=100))["t"] == "ack"
