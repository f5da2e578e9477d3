"""A session that is taken over at the worst moment: as its grace ends, and while somebody speaks.
One connection has it, or none; what is told is told to that one, whole."""

import asyncio
import random
from pathlib import Path

from gameserver.game import GameServer
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import SCENE, serving, until
from tests.gameserver.wanderer import Wanderer

TEXT = "Once, when the river was low, a miller's girl counted every stone of the ford. " * 3


async def arrive(server: GameServer, name: str) -> Wanderer:
    wanderer = Wanderer(server, name)
    await wanderer.connect()
    await wanderer.ask("scene.join", {"scene": SCENE})
    return wanderer


async def test_who_comes_back_just_as_its_grace_ends_has_its_session_or_another_one(
    tmp_path: Path,
) -> None:
    """Never half of each, and others see it leave only if it has left."""
    dice, grace_s, count = random.Random(5), 0.12, 24
    async with serving(tmp_path, [TEXT], flow={"resume_s": grace_s, "orphan_s": 0.05}) as server:
        bob = await Player.enter(server, "bob")
        guests = [await arrive(server, f"p{number}") for number in range(count)]

        async def blink(guest: Wanderer) -> bool:
            guest.drop()
            await asyncio.sleep(dice.uniform(grace_s * 0.8, grace_s * 1.2))
            session = guest.welcome["session"]
            guest.forgiving = True
            await guest.connect()
            resumed: bool = guest.welcome["resumed"]
            assert resumed is (guest.welcome["session"] == session)
            return resumed

        back = dict(zip(guests, await asyncio.gather(*map(blink, guests)), strict=True))
        await bob.ask("heartbeat", {"n": 1})
        await until(lambda: server.gauges()["sessions"] == count + 1)
        assert server.gauges()["sessions_away"] == 0
        assert server.gauges()["members"] == 1 + sum(back.values())
        for guest, resumed in back.items():
            seen = [
                change["what"]
                for message in bob.log
                if message["t"] == "presence"
                for change in message["d"]["changes"]
                if change["player"] == guest.name
            ]
            assert seen == ["join", "away", "back" if resumed else "leave"], guest.name
        assert 0 < sum(back.values()) < count, "some in time, and some not"
        # Whoever was too late may join anew, and nothing ends its seat any more.
        await asyncio.sleep(grace_s * 2)
        assert server.gauges()["sessions"] == count + 1
        for guest in guests:
            guest.drop()


async def test_a_turn_goes_on_at_the_connection_that_has_taken_over_and_at_no_other(
    tmp_path: Path,
) -> None:
    """Again and again in the midst of one turn; each old connection is told nothing more."""
    async with serving(tmp_path, [TEXT], step_ms=3.0) as server:
        connections = [await Player.enter(server)]
        await connections[0].say()
        turn = (await connections[0].get("npc.turn.start"))["d"]["turn"]
        text, n = "", 0
        for _ in range(8):
            old = connections[-1]
            await old.get("npc.delta")
            wish = resume_of(old, turn)
            heir = await Player.dial(server)
            assert (await heir.identify(resume=wish))["d"]["resumed"] is True
            assert await old.closed() == 4409
            told = old.types()
            assert told[-1] == "error"
            text, n = told_of(old, turn, text, n)
            connections.append(heir)
        last = connections[-1]
        end = (await last.get("npc.turn.end", turn=turn))["d"]
        text, n = told_of(last, turn, text, n)
        assert text == end["text"] == TEXT
        assert server.gauges()["sessions"] == 1
        assert [m["t"] for player in connections for m in player.log].count("npc.turn.end") == 1
        await until(lambda: server.gauges()["connections"] == 1)


def told_of(player: Player, turn: str, text: str, n: int) -> tuple[str, int]:
    """The text of a turn, and how many chunks that are, after what one more connection was told. An
    heir is told it from the beginning."""
    for message in player.log:
        d = message["d"]
        if message["t"] in ("npc.delta", "npc.turn.sync") and d["turn"] == turn:
            if message["t"] == "npc.turn.sync":
                assert d["i"] == 0
                assert d["text"].startswith(text), "what was said stays so"
                text, n = "", 0
            assert d["i"] == n
            text, n = text + d["text"], d["i"] + d["n"]
    return text, n


def resume_of(player: Player, turn: str) -> Message:
    """How it goes on after what it has got; of the turn it says that it has nothing."""
    welcome = next(m["d"] for m in reversed(player.log) if m["t"] == "welcome")
    last = max(m["s"] for m in player.log if m.get("st") == SCENE and "s" in m)
    return {
        "session": welcome["session"],
        "token": welcome["resume_token"],
        "cursors": [{"st": SCENE, "s": last}],
        "turns": [{"turn": turn, "next_i": 0}],
    }
