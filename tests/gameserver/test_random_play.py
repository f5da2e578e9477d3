"""Players do whatever they like; what each of them saw obeys the protocol."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from gameserver.game import GameServer
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import SCENE, serving, until

REPLIES = ["Yes.", "No. I have not seen the bridge for years.", "", "Ask Harn. He knows. I do not."]
NAMES = ("ann", "bob", "cy", "dee")


class Stroller(Player):
    """A player who acts at random and reads meanwhile."""

    def act(self, chance: random.Random) -> tuple[str, Message]:
        """Something to do."""
        turns = [m["d"]["turn"] for m in self.log[-40:] if m["t"] == "npc.turn.start"] or ["t-0"]
        npc = chance.choice(("mira", "harn"))
        to = chance.choice(([], [], [chance.choice(NAMES)], [npc]))
        target = chance.choice(({"npc": npc}, {"turn": turns[-1]}))
        mode = chance.choice(("truncate", "cancel", "yield"))
        return chance.choice(
            [
                ("say", {"npc": npc, "text": f"{self.name} speaks", "to": to}),
                ("say", {"npc": npc, "text": f"{self.name} speaks", "to": to}),
                ("say", {"text": "Anybody?", "prefill": chance.choice(("", "Well, "))}),
                ("npc.interrupt", {**target, "mode": mode, "heard_i": chance.randrange(20)}),
                ("turn.heard", {"turn": turns[-1], "heard_i": chance.randrange(20)}),
                ("observe", {"text": "A door opens.", "npc": chance.choice((None, npc))}),
                ("flow.set", {"pause": chance.random() < 0.5}),
                ("flow.set", {"delta_ms": chance.choice((0, 20))}),
                ("history.get", {"npc": npc}),
                ("scene.join", {"scene": SCENE, "greet": True}),
                ("scene.leave", {}),
                ("world.event", {"name": "thunder"}),
                ("heartbeat", {"n": 1, "cursors": [{"st": SCENE, "s": 1}]}),
            ]
        )


async def stroll(server: GameServer, name: str, seed: int) -> list[list[Message]]:
    """Some visits of one player. Returns what was seen in each."""
    chance = random.Random(f"{seed}{name}")
    visits = []
    for _ in range(2):
        player = await Stroller.enter(server, name)
        for _ in range(25):
            t, d = player.act(chance)
            await player.ask(t, d)
            if chance.random() < 0.4:
                await player.quiet(0.004)
        visits.append(player.log)
        if chance.random() < 0.5:
            player.socket.transport.abort()
        else:
            await player.ask("flow.set", {"pause": False})
            await player.ask("scene.join", {"scene": SCENE})
            with suppress(TimeoutError, ConnectionClosed):
                await player.quiet(0.3)
            await player.socket.close()
    return visits


def check(name: str, log: list[Message]) -> None:
    """What holds for one connection, whatever happened."""
    last: dict[str, int] = {}
    texts: dict[str, tuple[str, int]] = {}
    started: set[str] = set()
    ended: set[str] = set()
    for message in log:
        t, d, stream = message["t"], message["d"], message.get("st")
        if t == "scene.joined":
            last[SCENE] = message["s"]
            texts.update((turn["turn"], (turn["text"], turn["n"])) for turn in d["turns"])
        elif "s" in message:
            assert stream is not None
            assert message["s"] == last.get(stream, 0) + 1
            last[stream] = message["s"]
        if t == "player.said" and stream == "me":
            assert d["scene"] == SCENE
        elif t == "npc.turn.start":
            assert d["turn"] not in started
            assert (stream == "me") == bool(d["to"])
            assert not d["to"] or name in d["to"]
            started.add(d["turn"])
            texts[d["turn"]] = ("", 0)
        elif t in ("npc.delta", "npc.turn.sync"):
            assert d["turn"] not in ended
            text, n = texts[d["turn"]]
            assert d["i"] == n or (t == "npc.turn.sync" and d["i"] == 0)
            texts[d["turn"]] = (text * (d["i"] > 0) + d["text"], d["i"] + d["n"])
        elif t == "npc.turn.end":
            assert d["turn"] not in ended
            ended.add(d["turn"])
            assert 0 <= d["kept"] <= d["n"]
            if d["turn"] in texts:  # else it began before this visit to the scene
                assert d["text"].startswith(texts[d["turn"]][0])


@pytest.mark.parametrize("seed", range(6))
async def test_any_play_keeps_the_promises(tmp_path: Path, seed: int) -> None:
    limits: dict[str, Any] = {"queued_lines": 3}
    async with serving(
        tmp_path, REPLIES, step_ms=1.0, limits=limits, flow={"delta_ms": 3, "resume_s": 0.05}
    ) as server:
        logs = await asyncio.gather(*(stroll(server, name, seed) for name in NAMES))
        await until(lambda: server.gauges()["connections"] == 0)
        await until(lambda: server.gauges()["sessions"] == 0)
        await until(lambda: server.gauges()["turns_running"] == 0)
        gauges = server.gauges()
        assert gauges["sessions"] == gauges["members"] == gauges["lines_waiting"] == 0
        ends = sum(count for name, count in gauges.items() if name.startswith("turns_ended_"))
        assert ends == gauges["turns_started"]
        assert "errors_internal" not in gauges
        await until(lambda: server._engine.gauges()["running"] == 0)
    finals: dict[str, str] = {}
    for name, visits in zip(NAMES, logs, strict=True):
        for log in visits:
            check(name, log)
            for message in log:
                if message["t"] == "npc.turn.end":
                    d = message["d"]
                    assert finals.setdefault(d["turn"], d["text"]) == d["text"]
    assert finals
