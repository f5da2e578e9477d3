"""Clients at their own pace: pauses, slower deltas, lagging readers, acknowledgements."""

import asyncio
from pathlib import Path

from tests.gameserver.player import Player
from tests.gameserver.raw import narrow
from tests.gameserver.stage import SCENE, serving, until

TEXT = "Once, when the river was low, a miller's girl counted every stone of the ford. " * 3


async def test_heartbeats_are_answered_with_the_server_clock(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"]) as server:
        ann = await Player.enter(server)
        beat = {"n": 41, "cursors": [{"st": SCENE, "s": 1}, {"st": "me", "s": 0}], "lag_ms": 12.5}
        ack = await ann.ask("heartbeat", beat)
        assert ack["t"] == "heartbeat.ack"
        assert ack["d"]["n"] == 41
        assert abs(ack["d"]["now"] - ack["ts"]) < 1000
        assert "st" not in ack


async def test_a_paused_client_gets_events_and_one_sync_when_it_is_back(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        await ann.ask("flow.set", {"pause": True})
        await bob.say()
        start = await ann.get("npc.turn.start")
        await bob.get("npc.delta", i=0)
        await bob.get("npc.delta")
        await ann.quiet(0.05)
        assert {"npc.delta", "npc.state"}.isdisjoint(ann.types())
        await ann.ask("flow.set", {"pause": False})
        sync = await ann.get("npc.turn.sync")
        assert (sync["d"]["turn"], sync["d"]["i"]) == (start["d"]["turn"], 0)
        assert sync["st"] == SCENE
        assert sync["d"]["n"] > 1
        following = await ann.get("npc.delta")
        assert following["d"]["i"] == sync["d"]["n"]
        end = (await ann.get("npc.turn.end"))["d"]
        assert ann.heard(end["turn"]) == end["text"] == TEXT
        assert ann.types().count("npc.turn.sync") == 1
        state = await ann.get("npc.state")
        assert state["d"]["npc"] == "mira"


async def test_a_turn_that_passes_during_a_pause_comes_as_start_and_end(tmp_path: Path) -> None:
    async with serving(tmp_path, ["Short."]) as server:
        ann = await Player.enter(server)
        await ann.ask("flow.set", {"pause": True})
        end = await ann.hear()
        assert end["text"] == "Short."
        await ann.ask("flow.set", {"pause": False})
        await ann.quiet(0.05)
        assert {"npc.delta", "npc.turn.sync"}.isdisjoint(ann.types())


async def test_a_client_may_ask_for_fewer_deltas(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT], flow={"delta_ms": 5}) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        assert (await ann.ask("flow.set", {"delta_ms": 150}))["t"] == "ack"
        await bob.say()
        ends = [(await player.get("npc.turn.end"))["d"] for player in (ann, bob)]
        counts = [player.types().count("npc.delta") for player in (ann, bob)]
        assert counts[0] < counts[1] / 2
        assert ann.heard(ends[0]["turn"]) == bob.heard(ends[1]["turn"]) == TEXT
        refused = (await ann.ask("flow.set", {"delta_ms": 60_000}))["d"]
        assert (refused["code"], refused["limit"]) == ("bad_field", 5000)


async def test_a_slow_reader_gets_fewer_and_larger_deltas_and_every_word(tmp_path: Path) -> None:
    """Its socket is full for a while; what it missed comes merged, and nobody waits for it."""
    guards = {"stall_s": 10.0, "write_bytes": 1024, "send_buffer_bytes": 2048}
    flow = {"delta_ms": 1}
    async with serving(tmp_path, [TEXT], guards=guards, flow=flow) as server:
        bob = await Player.enter(server, "bob")
        ann = await Player.dial(server, "ann", max_queue=1, sock=narrow(server))
        await ann.identify()
        await ann.ask("scene.join", {"scene": SCENE})
        ann.socket.transport.pause_reading()
        await bob.flood(80)
        end = await bob.hear()
        ann.socket.transport.resume_reading()
        assert (await ann.get("npc.turn.end"))["d"] == end
        deltas = {p.name: p.types().count("npc.delta") for p in (ann, bob)}
        assert deltas["ann"] == 1 < deltas["bob"]
        assert ann.heard(end["turn"]) == bob.heard(end["turn"]) == end["text"] == TEXT
        assert server.gauges().get("stalled", 0) == 0


async def test_a_reader_behind_the_window_gets_a_snapshot_with_the_gap(tmp_path: Path) -> None:
    flow = {"window_events": 4}
    guards = {
        "stall_s": 10.0,
        "write_bytes": 1024,
        "send_buffer_bytes": 2048,
        "snapshots_per_minute": 1000,
    }
    async with serving(tmp_path, ["x"], flow=flow, guards=guards) as server:
        bob = await Player.enter(server, "bob")
        ann = await Player.dial(server, "ann", max_queue=1, sock=narrow(server))
        await ann.identify()
        await ann.ask("scene.join", {"scene": SCENE})
        ann.socket.transport.pause_reading()
        await bob.flood(120)
        ann.socket.transport.resume_reading()
        snapshot = await ann.get("scene.snapshot")
        events = [m["s"] for m in ann.log if m["t"] in ("scene.joined", "world.event")]
        assert snapshot["d"]["gap"] == {"from": events[-1] + 1, "to": snapshot["s"]}
        assert events == list(range(events[0], events[-1] + 1))
        assert [player["id"] for player in snapshot["d"]["players"]] == ["bob", "ann"]
        await bob.ask("world.event", {"name": "thunder"})
        while (event := await ann.get("world.event"))["d"]["data"] is not None:
            pass
        assert event["s"] == 33
        assert server.gauges()["gaps"] >= 1


async def test_a_client_that_stops_acknowledging_gets_events_only(tmp_path: Path) -> None:
    flow, guards = {"park_s": 0.05}, {"ping_interval_s": 0.08}
    async with serving(tmp_path, [TEXT, TEXT], flow=flow, guards=guards) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        await ann.ask("heartbeat", {"n": 1, "cursors": [{"st": SCENE, "s": 1}]})
        await bob.say()
        await until(lambda: server.gauges().get("parks", 0) == 1)
        end = await ann.get("npc.turn.end")
        assert ann.heard(end["d"]["turn"]) != TEXT
        ack = {"n": 2, "cursors": [{"st": SCENE, "s": end["s"]}]}
        await ann.ask("heartbeat", ack)
        await bob.say()
        again = (await ann.get("npc.turn.start"))["d"]["turn"]
        await ann.get("npc.delta", turn=again)
        # Bob never acknowledged anything and so is never parked.
        last = (await bob.get("npc.turn.end", turn=again))["d"]
        assert bob.heard(again) == last["text"]


async def test_the_private_stream_tells_of_a_gap(tmp_path: Path) -> None:
    flow = {"window_events": 2}
    async with serving(tmp_path, ["x"], flow=flow) as server:
        ann = await Player.enter(server)
        for number in range(6):  # in one piece, so that all happen before anything is sent
            own = f'{{"name":"thunder","scope":"player","data":{number}}}'
            await ann.socket.send(f'{{"t":"world.event","id":{number + 10},"st":"inn","d":{own}}}')
        await asyncio.sleep(0.05)
        await ann.quiet(0.05)
        private = [m for m in ann.log if m.get("st") == "me"]
        assert {m["t"] for m in private} <= {"world.event", "notice"}
        last = private[-1]
        assert last["d"].get("data") == 5 or last["d"]["code"] == "gap"
