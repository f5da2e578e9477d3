"""Stopping an NPC: who may, what everybody is told, and what is remembered."""

from pathlib import Path
from typing import Any

import pytest

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import serving

TEXT = "The mill burns. It has burned three nights, and nobody went up to look. Will you?"


async def speaking(player: Player) -> str:
    """Ask Mira and wait until she is well into her answer. Returns the turn."""
    await player.say()
    turn: str = (await player.get("npc.turn.start"))["d"]["turn"]
    await player.get("npc.delta")
    await player.get("npc.delta")
    return turn


async def remembered(player: Player) -> list[dict[str, Any]]:
    """What Mira's history holds of her own words."""
    history = (await player.ask("history.get", {"npc": "mira"}))["d"]["items"]
    return [item for item in history if item["kind"] == "npc"]


async def test_truncate_keeps_what_was_heard(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT, "Next."], inspect=True) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        turn = await speaking(ann)
        answer = await bob.ask("npc.interrupt", {"turn": turn, "mode": "truncate", "heard_i": 3})
        assert answer["t"] == "ack"
        for player in (ann, bob):
            end = (await player.get("npc.turn.end"))["d"]
            assert (end["status"], end["reason"], end["kept"]) == ("interrupted", "truncate", 4)
            assert end["n"] > 4
            assert TEXT.startswith(end["text"])
            assert player.heard(turn) == end["text"]
        (line,) = await remembered(ann)
        assert (line["id"], line["text"], line["heard"]) == (turn, TEXT[:4], 4)
        await ann.say("Go on.")
        following = (await ann.get("npc.turn.start"))["d"]["turn"]
        assert f"A:{TEXT[:4]}\n" in server.prompts[following].text
        assert TEXT[:5] not in server.prompts[following].text


@pytest.mark.parametrize("mode", [{}, {"mode": "truncate"}, {"mode": "cancel", "heard_i": 9}])
async def test_nothing_is_kept_of_what_nobody_heard(tmp_path: Path, mode: dict[str, Any]) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann = await Player.enter(server)
        await speaking(ann)
        await ann.ask("npc.interrupt", {"npc": "mira", **mode})
        end = (await ann.get("npc.turn.end"))["d"]
        cancelled = mode.get("mode") == "cancel"
        assert end["status"] == ("cancelled" if cancelled else "interrupted")
        assert end["kept"] == 0
        assert end["text"]
        assert await remembered(ann) == []


async def test_yield_lets_the_sentence_end(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann = await Player.enter(server)
        await ann.say()
        await ann.get("npc.delta")
        assert (await ann.ask("npc.interrupt", {"npc": "mira", "mode": "yield"}))["t"] == "ack"
        end = (await ann.get("npc.turn.end"))["d"]
        assert end["text"] == "The mill burns."
        assert (end["status"], end["reason"]) == ("interrupted", "yield")
        assert end["kept"] == end["n"] == len(end["text"])
        assert (await remembered(ann))[0]["text"] == end["text"]


async def test_yield_before_the_first_word_ends_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT], step_ms=100.0) as server:
        ann = await Player.enter(server)
        await ann.say()
        await ann.ask("npc.interrupt", {"npc": "mira", "mode": "yield"})
        end = (await ann.get("npc.turn.end"))["d"]
        assert (end["n"], end["text"], end["usage"]["ttft_ms"]) == (0, "", None)


async def test_heard_beyond_what_was_said_is_all_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann = await Player.enter(server)
        await speaking(ann)
        await ann.ask("npc.interrupt", {"npc": "mira", "heard_i": 9999})
        end = (await ann.get("npc.turn.end"))["d"]
        assert end["kept"] == end["n"]


async def test_the_next_line_is_answered_after_an_interrupt(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT, "Yes."]) as server:
        ann = await Player.enter(server)
        turn = await speaking(ann)
        waiting = await ann.say("Stop! And now?")
        await ann.ask("npc.interrupt", {"turn": turn})
        assert (await ann.get("npc.turn.end"))["d"]["turn"] == turn
        assert (await ann.get("npc.turn.start"))["d"]["cause"] == [waiting["d"]["msg"]]
        assert (await ann.get("npc.turn.end"))["d"]["text"] == "Yes."


async def test_there_is_nothing_to_interrupt(server: GameServer) -> None:
    ann = await Player.enter(server)
    for target in ({"npc": "mira"}, {"turn": "t-none"}):
        assert (await ann.ask("npc.interrupt", target))["d"]["code"] == "no_turn"
    assert (await ann.ask("npc.interrupt", {"npc": "nobody"}))["d"]["code"] == "no_npc"
    assert (await ann.ask("npc.interrupt", {}))["d"]["code"] == "bad_field"
    assert (await ann.ask("npc.interrupt", {"all": True}))["d"]["code"] == "forbidden"
    await ann.say()
    end = (await ann.get("npc.turn.end"))["d"]
    assert (await ann.ask("npc.interrupt", {"turn": end["turn"]}))["d"]["code"] == "no_turn"


async def test_the_first_interrupt_decides(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT], step_ms=20.0) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        turn = await speaking(ann)
        assert (await ann.ask("npc.interrupt", {"turn": turn, "heard_i": 1}))["t"] == "ack"
        second = await bob.ask("npc.interrupt", {"turn": turn, "mode": "cancel"})
        end = (await ann.get("npc.turn.end"))["d"]
        assert second["d"]["code"] == "no_turn"
        assert (end["status"], end["kept"]) == ("interrupted", 2)
        assert ann.types().count("npc.turn.end") == 1


async def test_memory_follows_how_far_a_finished_turn_was_played(server: GameServer) -> None:
    ann, bob = await Player.enter(server), await Player.enter(server, "bob")
    await ann.say()
    end = (await ann.get("npc.turn.end"))["d"]
    for heard_i, words in [(2, end["text"][:3]), (9, end["text"][:10]), (999, end["text"])]:
        report = {"turn": end["turn"], "heard_i": heard_i}
        assert (await ann.ask("turn.heard", report))["t"] == "ack"
        assert (await remembered(ann))[0]["text"] == words
    # A bystander's report changes nothing: the line was an answer to Ann.
    assert (await bob.ask("turn.heard", {"turn": end["turn"], "heard_i": 0}))["t"] == "ack"
    assert (await remembered(ann))[0]["text"] == end["text"]
    assert (await ann.ask("turn.heard", {"turn": end["turn"]}))["t"] == "ack"
    assert await remembered(ann) == []
    assert (await ann.ask("turn.heard", {"turn": "t-x"}))["d"]["code"] == "no_turn"


async def test_reports_before_the_end_of_a_turn_change_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann = await Player.enter(server)
        turn = await speaking(ann)
        assert (await ann.ask("turn.heard", {"turn": turn, "heard_i": 1}))["t"] == "ack"
        end = (await ann.get("npc.turn.end"))["d"]
        assert end["kept"] == end["n"]
        assert (await remembered(ann))[0]["text"] == TEXT


async def test_what_was_cancelled_stays_forgotten(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann = await Player.enter(server)
        turn = await speaking(ann)
        await ann.ask("npc.interrupt", {"turn": turn, "mode": "cancel"})
        await ann.get("npc.turn.end")
        assert (await ann.ask("turn.heard", {"turn": turn, "heard_i": 5}))["t"] == "ack"
        assert await remembered(ann) == []
