"""More lines than the engine can answer, over real sockets: honest refusals, notices, recovery."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from gameserver.game import GameServer
from gameserver.overload.ladder import Level
from tests.gameserver.player import Player
from tests.gameserver.stage import BARK, serving

CROWD = 20
REPLY = "The bridge is gone, the mill burns, and nobody in this house sleeps any more tonight."
SENTENCE = "The bridge is gone, and the mill burns."
TWO_SENTENCES = f"{SENTENCE} All left."
#: One slot for ordinary replies and one for quest-givers, so that twenty lines are too many.
ONE_AT_A_TIME = {"max_num_seqs": 2, "reserved_slots": 1}
NORMAL = {"level": 0, "name": "normal", "reason": "engine"}
IMPATIENT = {"first_word_s": 0.4, "quest_first_word_s": 60.0, "lag_ms": 1e9}


@asynccontextmanager
async def crowded(
    folder: Path, **overload: Any
) -> AsyncIterator[tuple[GameServer, list[Player], Player]]:
    """A server, players who are each in a room of their own, and one who watches."""
    sections = {"engine": ONE_AT_A_TIME, "overload": {**IMPATIENT, **overload}}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(folder, [REPLY], step_ms=4, **sections))

        async def enter(name: str) -> Player:
            player = await Player.enter(server, name, instance=name)
            stack.push_async_callback(player.socket.close)
            return player

        yield server, [await enter(f"p{n}") for n in range(CROWD)], await enter("watcher")


async def test_lines_that_would_wait_too_long_are_busy_and_clients_hear_of_levels_and_recovery(
    tmp_path: Path,
) -> None:
    quick = {"up_s": 0.05, "down_s": 0.05}
    async with crowded(tmp_path, **quick) as (server, players, watcher):
        accepted: list[Player] = []
        refused = []
        level = asyncio.create_task(watcher.get("notice", code="degraded"))
        waiting = list(players)
        while waiting and not (level.done() and refused):  # they ask again until they are let in
            for player in list(waiting):
                answer = await player.say()
                if answer["t"] == "error":
                    refused.append(answer["d"])
                else:
                    accepted.append(player)
                    waiting.remove(player)
            await asyncio.sleep(0.05)
        assert accepted
        for refusal in refused:
            assert refusal["code"] == "busy"
            assert 250 <= refusal["retry_ms"] <= 30_000
            assert refusal["actual"] > refusal["limit"] == 360
        first = await level
        assert first["d"]["data"] == {"level": 1, "name": "merge", "reason": "engine"}
        assert "st" not in first, "it is about the server, not about a scene"

        quest = await watcher.hear(npc="harn")
        assert quest["text"] == REPLY, "quest-givers are talked to as ever, in full"
        for player in accepted:  # what was accepted is answered
            assert (await player.get("npc.turn.end"))["d"]["status"] == "completed"

        late = await Player.enter(server, "late", instance="late")
        assert server.gauges()["degraded_merge"] >= 1
        assert (await late.get("notice", code="degraded"))["d"]["data"]["name"], (
            "also who comes now"
        )
        await watcher.get("notice", code="degraded", data=NORMAL)
        assert (await players[-1].hear())["status"] == "completed"
        await late.socket.close()


async def test_npcs_that_have_barks_say_them_instead_of_letting_players_wait(
    tmp_path: Path,
) -> None:
    async with crowded(tmp_path, up_s=1e6, down_s=1e6) as (server, players, _):
        server._overload._ladder.level = Level.BARKS
        accepted = [await player.say() for player in players]
        assert {answer["t"] for answer in accepted} == {"say.accepted"}
        ends = [(await player.get("npc.turn.end"))["d"] for player in players]
        barks = [end for end in ends if end["reason"] == "bark"]
        assert 0 < len(barks) < CROWD, "the first are answered"
        for end in barks:
            assert (end["text"], end["status"], end["usage"]["completion"]) == (
                BARK,
                "completed",
                0,
            )
        listener = players[ends.index(barks[0])]
        assert [t for t in listener.types() if t.startswith(("player.said", "npc.turn"))] == [
            "player.said",
            "npc.turn.start",
            "npc.turn.end",
        ]
        page = (await listener.ask("history.get", {"npc": "mira"}))["d"]["items"]
        assert [item["text"] for item in page] == ["Hello?", BARK], "the NPC knows what was said"


async def test_an_npc_ends_with_its_sentence_if_others_wait_while_replies_are_short(
    tmp_path: Path,
) -> None:
    calm = {"first_word_s": 0, "quest_first_word_s": 0, "lag_ms": 1e9, "up_s": 1e6, "down_s": 1e6}
    async with serving(tmp_path, [TWO_SENTENCES], step_ms=3, overload=calm) as server:
        server._overload._ladder.level = Level.SHORT
        ann, ben = await Player.enter(server, "ann"), await Player.enter(server, "ben")

        async def answers(*speakers: Player) -> list[str]:
            lines = [(await who.say(npc="harn"))["d"]["msg"] for who in speakers]
            texts = []
            for line in lines:
                start = await ann.get("npc.turn.start", cause=[line])
                end = (await ann.get("npc.turn.end", turn=start["d"]["turn"]))["d"]
                assert (end["status"], end["reason"]) == ("completed", "stop")
                texts.append(end["text"])
            return texts

        assert await answers(ann, ann) == [TWO_SENTENCES] * 2, "one's own next line hurries nobody"
        assert await answers(ann, ben) == [SENTENCE, TWO_SENTENCES]
        await ann.socket.close()
        await ben.socket.close()
