"""From a line to its answer: order, streaming, queues, what everybody hears."""

import asyncio
import itertools
from pathlib import Path

import pytest

from engine.errors import NoRoom, QueueFull
from engine.ticket import Ticket
from gameserver.game import GameServer
from gameserver.ledger import Ledger
from gameserver.plot import Plot
from gameserver.safety import Listener, Safety
from npc.actions.channels import Channels
from npc.dialogue import Dialogue
from npc.feelings import Feelings
from npc.mood import Mood
from npc.transcript import Transcript
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving, until


async def test_two_players_hear_the_same_words_with_the_same_numbers(server: GameServer) -> None:
    ann, bob = await Player.enter(server), await Player.enter(server, "bob")
    await ann.say("Any rumours?")
    ends = [await player.get("npc.turn.end") for player in (ann, bob)]
    assert ends[0] == ends[1]
    end = ends[0]["d"]
    assert end["text"] == "The bridge is gone. Nobody leaves tonight."
    events = {}
    for player in (ann, bob):
        assert player.heard(end["turn"]) == end["text"]
        events[player.name] = [
            (m["t"], m["s"], m["ep"], m["st"]) for m in player.log if "s" in m and m["s"] > 2
        ]
    assert events["ann"] == events["bob"]
    assert [t for t, *_ in events["bob"]] == ["player.said", "npc.turn.start", "npc.turn.end"]


async def test_the_order_of_a_turn(server: GameServer) -> None:
    ann = await Player.enter(server)
    accepted = await ann.say("Any rumours?")
    await ann.get("npc.turn.end")
    await ann.get("npc.state", activity="idle")
    types = [t for t, _ in itertools.groupby(ann.types()[3:]) if t != "npc.state"]
    assert [t for t, _ in itertools.groupby(types)] == [
        "say.accepted",
        "player.said",
        "npc.turn.start",
        "npc.delta",
        "npc.turn.end",
    ]
    said = next(m for m in ann.log if m["t"] == "player.said")["d"]
    assert said == {
        "msg": accepted["d"]["msg"],
        "player": "ann",
        "npc": "mira",
        "text": "Any rumours?",
    }
    start = next(m for m in ann.log if m["t"] == "npc.turn.start")["d"]
    assert start["cause"] == [said["msg"]]
    states = [m["d"]["activity"] for m in ann.log if m["t"] == "npc.state"]
    assert states == ["thinking", "speaking", "idle"]
    revs = [m["d"]["rev"] for m in ann.log if m["t"] == "npc.state"]
    assert revs == sorted(set(revs))
    for message in ann.log[2:]:
        assert (message["st"], message["ep"] > 0) == (SCENE, True)
        assert ("s" in message) == (
            message["t"] in ("scene.joined", "player.said", "npc.turn.start", "npc.turn.end")
        )


async def test_the_first_chunk_goes_out_at_once_and_later_ones_together(tmp_path: Path) -> None:
    text = "One two three four five six seven eight nine ten eleven twelve."
    async with serving(tmp_path, [text], step_ms=5.0, flow={"delta_ms": 60}) as server:
        ann = await Player.enter(server)
        await ann.say()
        end = (await ann.get("npc.turn.end"))["d"]
        deltas = [m["d"] for m in ann.log if m["t"] == "npc.delta"]
        assert (deltas[0]["i"], deltas[0]["n"]) == (0, 1)
        assert all(delta["n"] > 3 for delta in deltas[1:-1])
        assert len(deltas) < len(text) / 4
        assert sum(delta["n"] for delta in deltas) == end["n"] == len(text)


async def test_usage_is_a_bill_from_the_arrival_of_the_line(server: GameServer) -> None:
    ann = await Player.enter(server)
    await ann.say()
    usage = (await ann.get("npc.turn.end"))["d"]["usage"]
    assert usage["prompt"] > 0
    assert 0 <= usage["cached"] <= usage["prompt"]
    assert usage["completion"] >= len("The bridge is gone.")
    assert 0 <= usage["queue_ms"] <= usage["ttft_ms"] <= usage["total_ms"] < 5000


async def test_lines_are_answered_one_turn_each_in_order_of_arrival(server: GameServer) -> None:
    players = [await Player.enter(server, name) for name in ("ann", "bob", "cy")]
    accepted = [(await player.say(f"I am {player.name}"))["d"] for player in players]
    assert [answer["queue_pos"] for answer in accepted] == [0, 1, 2]
    for player in players:
        starts, ends = [], []
        for _ in players:
            starts.append((await player.get("npc.turn.start"))["d"])
            ends.append((await player.get("npc.turn.end"))["d"])
        assert [start["cause"] for start in starts] == [[answer["msg"]] for answer in accepted]
        assert [start["turn"] for start in starts] == [end["turn"] for end in ends]


async def test_a_player_has_one_line_in_answer_and_one_waiting(server: GameServer) -> None:
    ann, bob = await Player.enter(server), await Player.enter(server, "bob")
    assert (await ann.say("one"))["d"]["queue_pos"] == 0
    assert (await ann.say("two"))["d"]["queue_pos"] == 1
    third = (await ann.say("three"))["d"]
    assert third["code"] == "busy"
    assert third["retry_ms"] > 0
    assert (await ann.say("elsewhere", npc="harn"))["t"] == "say.accepted"
    assert (await bob.say("me too"))["d"]["queue_pos"] == 2
    assert (await bob.say("again"))["d"]["code"] == "busy"
    for _ in range(4):
        await ann.get("npc.turn.end")
    assert (await ann.say("three"))["t"] == "say.accepted"


async def test_npcs_speak_beside_each_other(server: GameServer) -> None:
    ann = await Player.enter(server)
    await ann.say("hello", npc="mira")
    await ann.say("hello", npc="harn")
    first = (await ann.get("npc.turn.start"))["d"]
    second = (await ann.get("npc.turn.start"))["d"]
    assert {first["npc"], second["npc"]} == {"mira", "harn"}
    await ann.get("npc.turn.end")
    await ann.get("npc.turn.end")


async def test_without_an_npc_the_scene_decides_who_answers(server: GameServer) -> None:
    ann = await Player.enter(server)
    for text, npc in [("Captain Harn, a word", "harn"), ("and then?", "harn"), ("Mira!", "mira")]:
        await ann.ask("say", {"text": text})
        assert (await ann.get("npc.turn.start"))["d"]["npc"] == npc
        await ann.get("npc.turn.end")


async def test_an_unknown_npc_is_refused(server: GameServer) -> None:
    ann = await Player.enter(server)
    assert (await ann.say(npc="nobody"))["d"]["code"] == "no_npc"
    assert (await ann.ask("say", {"text": "x"}, st="moon"))["d"]["code"] == "no_scene"


async def test_a_prefill_begins_the_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, ["the mill burns."], inspect=True) as server:
        ann = await Player.enter(server)
        await ann.say("Well?", prefill="Listen: ")
        end = (await ann.get("npc.turn.end"))["d"]
        assert end["text"] == "Listen: the mill burns."
        assert end["n"] == len("the mill burns.")
        assert ann.heard(end["turn"]) == end["text"]
        prompt = server.prompts[end["turn"]]
        assert prompt.text.endswith("Listen: ")
        assert prompt.token_ids


async def test_whole_characters_only(tmp_path: Path) -> None:
    text = "Grüße, 旅人! 🐉 שלום"
    async with serving(tmp_path, [text], flow={"delta_ms": 0}) as server:
        ann = await Player.enter(server)
        await ann.say()
        end = (await ann.get("npc.turn.end"))["d"]
        deltas = [m["d"]["text"] for m in ann.log if m["t"] == "npc.delta"]
        assert "".join(deltas) == end["text"] == text
        assert "\ufffd" not in end["text"]
        assert end["n"] == len(text)


async def test_a_turn_never_outgrows_a_message(tmp_path: Path) -> None:
    limits = {"out_bytes": 8192}
    async with serving(tmp_path, ['"\\' * 4000], step_ms=0.0, limits=limits) as server:
        ann = await Player.enter(server)
        await ann.say()
        end = await ann.get("npc.turn.end")
        assert end["d"]["status"] == "truncated"
        assert end["d"]["kept"] == end["d"]["n"]
        assert ann.heard(end["d"]["turn"]) == end["d"]["text"]
        assert (await ann.say("next"))["t"] == "say.accepted"


async def test_an_engine_that_stops_ends_turns_too(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x" * 5000]) as server:
        ann = await Player.enter(server)
        await ann.say()
        await ann.get("npc.delta")
        await server._engine.stop()
        end = (await ann.get("npc.turn.end"))["d"]
        assert end["status"] == "interrupted"
        refused = (await ann.say("anyone?"))["d"]
        assert refused["code"] == "draining"


async def test_a_full_engine_is_busy_and_nothing_has_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, ["x" * 3000], engine={"max_waiting": 1}) as server:
        players = [await Player.enter(server, f"p{n}", instance=f"i{n}") for n in range(20)]
        answers = await asyncio.gather(*(player.say() for player in players))
        refused = [answer["d"] for answer in answers if answer["t"] == "error"]
        assert refused
        assert {error["code"] for error in refused} == {"busy"}
        assert all(error["retry_ms"] > 0 for error in refused)
        for player, answer in zip(players, answers, strict=True):
            await player.quiet(0.02)
            assert ("player.said" in player.types()) == (answer["t"] == "say.accepted")


async def test_a_waiting_line_that_the_engine_refuses_is_a_failed_turn(
    server: GameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await Player.enter(server)
    dialogue = server._world.actors[SCENE].ensemble.floor("mira").dialogue
    begin = dialogue.begin
    await ann.say("one")
    second = (await ann.say("two"))["d"]

    def full(*args: object) -> Ticket:
        monkeypatch.setattr(dialogue, "begin", begin)
        raise QueueFull(1)

    monkeypatch.setattr(dialogue, "begin", full)
    await ann.get("npc.turn.end", status="completed")
    assert (await ann.get("npc.turn.start"))["d"]["cause"] == [second["msg"]]
    end = (await ann.get("npc.turn.end"))["d"]
    assert (end["status"], end["err"]["code"], end["n"], end["kept"]) == ("failed", "busy", 0, 0)
    assert (await ann.hear("three"))["status"] == "completed"


async def test_where_memory_is_short_a_line_is_busy_and_one_that_waits_gets_a_failed_turn(
    server: GameServer,
) -> None:
    ann = await Player.enter(server)
    engine = server._engine._engine
    await ann.say("one")
    waiting = (await ann.say("two"))["d"]["msg"]
    room, engine._check_room = engine._check_room, _no_room  # type: ignore[method-assign]
    refused = (await ann.say("three", npc="harn"))["d"]
    assert (refused["code"], refused["retry_ms"]) == ("busy", 2000)
    await ann.get("npc.turn.end", status="completed")
    turn = (await ann.get("npc.turn.start", cause=[waiting]))["d"]["turn"]
    end = (await ann.get("npc.turn.end", turn=turn))["d"]
    assert end["status"] == "failed"
    assert end["err"] == {"code": "busy", "msg": "memory is short", "retry_ms": 2000}
    engine._check_room = room  # type: ignore[method-assign]
    assert (await ann.hear("four"))["status"] == "completed"


def _no_room(*_: object) -> None:
    raise NoRoom(9000, 10)


async def test_a_turn_ends_even_if_it_cannot_be_remembered(
    server: GameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await Player.enter(server)
    dialogue = server._world.actors[SCENE].ensemble.floor("mira").dialogue

    def broken(*args: object) -> None:
        raise RuntimeError("memory is full")

    monkeypatch.setattr(dialogue, "commit", broken)
    for _ in range(2):
        assert (await ann.hear())["status"] == "completed"


@pytest.mark.parametrize(
    ("part", "method"),
    [(Channels, "push"), (Channels, "flush"), (Listener, "feed"), (Listener, "finish")],
)
async def test_a_turn_that_a_fault_of_ours_breaks_off_fails_once_and_the_next_is_spoken(
    server: GameServer, monkeypatch: pytest.MonkeyPatch, part: type, method: str
) -> None:
    """Wherever on the way of the words it is, in their midst or at their end."""
    ann = await Player.enter(server)

    def broken(*args: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as fault:
        fault.setattr(part, method, broken)
        await ann.say("one")
        await ann.say("two")
        for _ in range(2):
            turn = (await ann.get("npc.turn.start"))["d"]["turn"]
            end = (await ann.get("npc.turn.end"))["d"]
            assert (end["turn"], end["status"], end["reason"]) == (turn, "failed", "engine")
            assert end["err"]["code"] == "internal"
            assert "bug" not in end["err"]["msg"]
            assert end["text"] == ann.heard(turn)
            assert end["usage"]["prompt"] > 0
    assert (await ann.hear("three"))["status"] == "completed"
    await ann.get("npc.state", activity="idle")
    assert ann.types().count("npc.turn.start") == ann.types().count("npc.turn.end") == 3


@pytest.mark.parametrize(
    ("part", "method"),
    [
        (Plot, "brief"),
        (Safety, "listen"),
        (Dialogue, "prepare"),
        (Dialogue, "channels"),
        (Dialogue, "begin"),
        (Dialogue, "commit"),
        (Transcript, "add"),
        (Feelings, "heard"),
        (Mood, "at"),
        (Ledger, "end"),
    ],
)
async def test_a_fault_where_a_turn_begins_or_ends_is_that_turns_alone(
    server: GameServer, monkeypatch: pytest.MonkeyPatch, part: type, method: str
) -> None:
    """Its line is refused, or it ends; the lines behind it and the NPC go on, and the engine
    computes nothing for nobody."""
    ann, bob, cid = [await Player.enter(server, name) for name in ("ann", "bob", "cid")]
    said = [await ann.say("one"), await bob.say("two")]

    def broken(*args: object, **named: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as fault:
        fault.setattr(part, method, broken)
        last = await cid.say("three")
        assert last["t"] == "say.accepted" or last["d"]["code"] == "internal"
        for line in (*said, *([last] if last["t"] == "say.accepted" else [])):
            turn = (await ann.get("npc.turn.start", cause=[line["d"]["msg"]]))["d"]["turn"]
            end = (await ann.get("npc.turn.end", turn=turn))["d"]
            assert end["status"] == "completed" or end["err"]["code"] == "internal"
    assert (await ann.hear("four"))["status"] == "completed"
    await until(lambda: not server._engine.gauges()["running"])
    floor = server._world.actors[SCENE].ensemble.floor("mira")
    await until(lambda: floor.quiet)
    assert ann.types().count("npc.turn.start") == ann.types().count("npc.turn.end")


async def test_an_error_of_ours_is_internal_and_the_connection_stays(
    server: GameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await Player.enter(server)

    def broken(*args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(server._world.actors[SCENE], "say", broken)
    refused = await ann.say()
    assert refused["d"] == {"code": "internal", "msg": refused["d"]["msg"], "fatal": False}
    assert "bug" not in refused["d"]["msg"]
    assert (await ann.ask("heartbeat"))["t"] == "heartbeat.ack"


async def test_a_prefill_alone_is_an_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, [""]) as server:
        ann = await Player.enter(server)
        end = await ann.hear("Well?", prefill="Hm.")
        assert (end["text"], end["n"], end["kept"]) == ("Hm.", 1, 1)
        silent = await ann.hear("Well?")
        assert (silent["text"], silent["n"], silent["status"]) == ("", 0, "completed")


async def test_how_long_turns_take_is_measured(server: GameServer) -> None:
    ann = await Player.enter(server)
    for _ in range(3):
        await ann.hear()
    gauges = server.gauges()
    assert gauges["ttft_ms_count"] == gauges["turn_ms_count"] == 3
    assert gauges["ttft_ms_sum"] >= gauges["ttft_ms_p50"] <= gauges["ttft_ms_p99"]
    assert gauges["turns_ended_completed"] == 3
