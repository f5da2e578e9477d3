"""A server that has talked for long keeps no more than one that has talked for a while."""

import asyncio
import gc
from collections import Counter
from pathlib import Path

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import serving, until

LIMITS = {"sessions_per_player": 8}
#: So little is remembered that everything is full after the first round.
SMALL = {"resume_s": 0.02, "window_events": 16, "answers": 4, "finished_turns": 4}
REPLIES = {"transcript_lines": 8, "circles": 2, "history_tokens": 200}


async def round_of_talk(server: GameServer, number: int) -> None:
    """Players come, talk aloud and in whispers, interrupt, and go, some without a word."""
    players = [await Player.enter(server, f"p{number}-{n}") for n in range(3)]
    for turn in range(4):
        for player in players:
            await player.say(f"line {number} {turn}", npc=("mira", "harn")[turn % 2])
        await players[0].say("psst", npc="harn", to=[players[1].name])
        await players[1].ask("npc.interrupt", {"npc": "mira"})
        await players[2].ask("observe", {"text": f"A door opens {number} {turn}."})
        await until(lambda: server.gauges()["turns_running"] == 0)
    for player in players[:2]:
        await player.socket.close()
    players[2].socket.transport.abort()
    await until(lambda: server.gauges()["connections"] == 0)


OURS = ("engine", "scenes", "npc", "gameserver")


async def objects() -> Counter[str]:
    """Our own, by class; timers and buffers of libraries come and go as they like."""
    await asyncio.sleep(0.05)
    gc.collect()
    kinds = (type(found) for found in gc.get_objects())
    return Counter(k.__qualname__ for k in kinds if str(k.__module__).startswith(OURS))


async def test_nothing_that_players_do_accumulates(tmp_path: Path) -> None:
    async with serving(
        tmp_path,
        ["Yes.", "No, never."],
        step_ms=0.0,
        limits=LIMITS,
        flow=SMALL,
        reply_settings=REPLIES,
        budgets={"accounts": 8},
    ) as server:
        for number in range(8):
            await round_of_talk(server, number)
        before = await objects()
        for number in range(8, 32):
            await round_of_talk(server, number)
        grown = await objects() - before
        # One kept a round would be 24; a connection that has just gone may still be around.
        assert all(count <= 6 for count in grown.values()), grown
