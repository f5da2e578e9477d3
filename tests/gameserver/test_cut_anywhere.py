"""Whenever and wherever a line is cut: no gap, no double, and the same words as for all others."""

import asyncio
import random
from pathlib import Path

import pytest

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving
from tests.gameserver.wanderer import Lost, Wanderer

REPLIES = ["Yes.", "No. I have not seen the bridge for years, nor have you.", "Ask Harn: he knows."]
ACTS = 12


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))


async def live(wanderer: Wanderer, chance: random.Random) -> None:
    """Act at random and lose the line at random bytes, until every command is answered."""
    await wanderer.connect()
    await wanderer.ask("scene.join", {"scene": SCENE})
    acts = 0
    while acts < ACTS or len(wanderer.answers) < acts + 1:
        try:
            way = chance.choice(("in", "out"))
            wanderer.budget = {"in": None, "out": None}
            wanderer.budget[way] = chance.randrange(4000 if way == "in" else 600)
            while acts < ACTS or len(wanderer.answers) < acts + 1:
                if acts < ACTS and chance.random() < 0.4:
                    acts += 1
                    wanderer.command(*act(wanderer, chance))
                else:
                    async with asyncio.timeout(0.02):
                        await wanderer.receive()
        except TimeoutError:
            wanderer.drop()  # a wait may have taken half a frame with it
            await come_back(wanderer)
        except Lost:
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.03)
            await come_back(wanderer)


async def come_back(wanderer: Wanderer) -> None:
    """Connect again, on a line that holds until `welcome` has brought the next token."""
    wanderer.budget = {"in": None, "out": None}
    wanderer.drop()
    await wanderer.connect()
    assert wanderer.welcome["resumed"] is True


def act(wanderer: Wanderer, chance: random.Random) -> tuple[str, dict[str, object]]:
    turns = [*wanderer.texts, "t-0"]
    npc = chance.choice(("mira", "harn"))
    return chance.choice(
        [
            ("say", {"npc": npc, "text": f"{wanderer.name} speaks"}),
            ("say", {"npc": npc, "text": "psst", "to": [npc]}),
            ("npc.interrupt", {"turn": turns[0], "heard_i": chance.randrange(9)}),
            ("world.event", {"name": "thunder"}),
            ("heartbeat", {"n": 1, "cursors": []}),
        ]
    )


async def settle(server: GameServer, wanderers: list[Wanderer], observer: Player) -> None:
    """A last event, and everybody has heard of it."""
    while server.gauges()["turns_running"] or server.gauges()["lines_waiting"]:
        for wanderer in wanderers:
            try:
                async with asyncio.timeout(0.02):
                    await wanderer.receive()
            except (TimeoutError, Lost):
                await come_back(wanderer)
    await observer.ask("world.event", {"name": "thunder", "data": "the end"})
    await observer.get("world.event", data="the end")
    for wanderer in wanderers:
        await come_back(wanderer)
        while not any(e["d"].get("data") == "the end" for e in wanderer.events.values()):
            await wanderer.receive()


async def test_a_cut_line_tells_what_an_uncut_one_does(tmp_path: Path, seed: int) -> None:
    flow = {"delta_ms": 3}
    limits = {"queued_lines": 100}
    async with serving(tmp_path, REPLIES, step_ms=0.3, flow=flow, limits=limits) as server:
        observer = await Player.enter(server, "observer")
        reading = asyncio.create_task(observer.get("never"))
        framings = ("npc.v1.json", "npc.v1.msgpack")
        wanderers = [Wanderer(server, framing[7:], framing) for framing in framings]
        chances = [random.Random(f"{seed} {wanderer.name}") for wanderer in wanderers]
        await asyncio.gather(*map(live, wanderers, chances))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await settle(server, wanderers, observer)
        told = {m["s"]: m for m in observer.log if "s" in m and m["t"] != "scene.joined"}
        ends = {m["d"]["turn"]: m["d"]["text"] for m in told.values() if m["t"] == "npc.turn.end"}
        for wanderer in wanderers:
            numbers = [s for st, s in wanderer.events if st == SCENE]
            assert numbers == list(range(numbers[0], max(told) + 1))
            assert all(wanderer.events[SCENE, s] == told[s] for s in numbers if s in told)
            private = [s for st, s in wanderer.events if st == "me"]
            assert private == list(range(1, len(private) + 1))
            heard = {turn: text for turn, text in wanderer.ended.items() if turn in ends}
            assert heard == {turn: ends[turn] for turn in heard}
            assert not wanderer.texts
            lines = [e for e in wanderer.events.values() if e["t"] == "player.said"]
            own = [e["d"]["msg"] for e in lines if e["d"]["player"] == wanderer.name]
            accepted = [
                a["d"]["msg"] for a in wanderer.answers.values() if a["t"] == "say.accepted"
            ]
            assert sorted(own) == sorted(accepted)  # two streams, each in its own order
            assert len(wanderer.answers) == ACTS + 1
        assert server.gauges()["sessions_resumed"] > 0
