"""Whatever others say where one does not hear it, one is told the same: twice the same evening, but
for what is whispered and said out of earshot, and all that an outsider is told is equal."""

import json
from pathlib import Path
from typing import Any

import pytest

from gameserver.game import GameServer
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import SCENE, serving, until

REACTIONS = [
    {"id": "rude", "said": ["rat"], "trust": -30, "mood": "angry"},
    {"id": "bang", "event": "thunder", "mood": "afraid", "strength": 80},
]
PACK: dict[str, Any] = {"hearing": 6, "players": {"at": [0, 0]}, "reactions": REACTIONS}
#: What is said in private on each evening, and what is answered to that; in public, the same.
EVENINGS = [
    (["The key is under the third step, you rat!", "rat " * 40], ["Hush.", "No! " * 30]),
    (["Yes.", "Lovely weather, and not a cloud in the sky."], ["Indeed it is. " * 9, "Oh."]),
]
PUBLIC = "The bridge is gone."
#: Which differ from evening to evening by themselves.
_TIMES = {"ts", "now", "queue_ms", "ttft_ms", "total_ms"}


class Outsider(Player):
    """Cy, far away, who tries to learn what he can. He has one log over all his connections."""

    everything: list[Message]

    async def come(self, server: GameServer, **wish: Any) -> "Outsider":
        """Another connection of his."""
        another = await Outsider.dial(server, "cy")
        another.everything = self.everything
        another.log = self.everything
        another._read, another._last_id = len(self.everything), self._last_id
        another.stream = SCENE
        await another.identify(**wish)
        return another

    async def prod(self, turn: str) -> None:
        """Ask for whatever might tell something."""
        for t, d in (
            ("history.get", {"npc": "harn"}),
            ("history.get", {"npc": "mira"}),
            ("history.get", {"scene": SCENE}),
            ("npc.interrupt", {"npc": "mira"}),
            ("npc.interrupt", {"turn": turn}),
            ("turn.heard", {"turn": turn, "heard_i": 0}),
            ("action.result", {"turn": turn, "action": "a-1", "ok": True}),
            ("scene.join", {"scene": SCENE}),
            ("heartbeat", {"n": 1, "cursors": [{"st": SCENE, "s": 1}, {"st": "me", "s": 0}]}),
        ):
            answer = await self.ask(t, d)
            aimed = t in ("npc.interrupt", "turn.heard", "action.result")
            assert aimed is (answer["d"].get("code") == "no_turn")


async def evening(folder: Path, private: list[str], answers: list[str]) -> list[Message]:
    """All that Cy is told."""
    replies = [answers[0], answers[1], answers[0], PUBLIC, answers[1], PUBLIC, PUBLIC]
    async with serving(
        folder, replies, pack=PACK, state={"pace_ms": 5}, flow={"window_events": 8}
    ) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        cy = await Outsider.enter(server, "cy")
        cy.everything = cy.log
        await cy.ask("state.set", {"items": [{"e": "cy", "k": "pos", "v": [100, 0]}]})

        async def aside(text: str, **to: Any) -> None:
            """A private line and its answer, in the midst of which Cy looks around."""
            accepted = await ann.say(text, **to)
            assert accepted["t"] == "say.accepted", accepted
            start = await ann.get("npc.turn.start", cause=[accepted["d"]["msg"]])
            assert start["st"] == "me"
            await cy.prod(start["d"]["turn"])
            await ann.get("npc.turn.end", turn=start["d"]["turn"])
            await until(lambda: server.gauges()["turns_running"] == 0)
            await cy.prod(start["d"]["turn"])

        await aside(private[0], to=["mira"])
        await aside(private[1], to=["bob", "mira"])
        await ann.ask("say", {"text": private[0], "to": ["bob"]})  # no NPC hears it
        await ann.ask("world.event", {"name": "thunder", "data": private[0], "scope": "player"})
        await aside(private[1])  # out of Cy's earshot
        assert (await cy.hear("Good evening?", npc="mira"))["text"] == PUBLIC
        moods = {m["d"]["mood"] for m in cy.log if m["t"] == "npc.state"}
        assert moods == {"neutral"}, "a rude word in private, and a bang that one alone has heard"
        # He loses his line, in the window and beyond it, while others whisper.
        for more in (0, 20):
            welcome = next(m["d"] for m in reversed(cy.log) if m["t"] == "welcome")
            last = max(m["s"] for m in cy.log if m.get("st") == SCENE and "s" in m)
            cy.socket.transport.abort()
            await until(lambda: server.gauges()["sessions_away"] == 1)
            for _ in range(more):
                await ann.ask("world.event", {"name": "thunder"})
            if not more:
                await ann.hear(private[0], to=["bob", "mira"])
            await ann.ask("say", {"text": private[1], "to": ["bob"]})
            cursors = [{"st": SCENE, "s": last}, {"st": "me", "s": 0}]
            resume = {"session": welcome["session"], "token": welcome["resume_token"]}
            cy = await cy.come(server, resume={**resume, "cursors": cursors})
            await cy.ask("heartbeat", {"n": 2})
        # And he reloads his page.
        await cy.send("bye")
        await cy.closed()
        cy = await cy.come(server)
        await cy.ask("scene.join", {"scene": SCENE})
        await cy.prod("t-0")
        await cy.ask("state.set", {"items": [{"e": "cy", "k": "pos", "v": [100, 0]}]})
        assert (await cy.hear("And now?", npc="mira"))["text"] == PUBLIC
        # At last he comes near, and speaks before everybody: his bill tells nothing, either.
        await cy.ask("state.set", {"items": [{"e": "cy", "k": "pos", "v": [1, 0]}]})
        end = await cy.hear("And here?", npc="mira")
        assert end["text"] == PUBLIC
        assert (await bob.get("npc.turn.end", turn=end["turn"]))["st"] == SCENE
        return cy.everything


def told(log: list[Message]) -> list[str]:
    """A log without times, chance, and how speech was cut into pieces; each as text."""
    names: dict[str, str] = {}

    def plain(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: plain(v, k) for k, v in sorted(value.items()) if k not in _TIMES}
        if isinstance(value, list):
            return [plain(item, key) for item in value]
        if key in ("ep", "h", "resume_token"):
            return 0
        if isinstance(value, str) and value[:2] in ("m-", "t-", "s-", "a-") and len(value) > 10:
            return names.setdefault(value, f"{value[:2]}{len(names)}")
        return value

    return [
        json.dumps(plain(message))
        for message in log
        if message["t"] not in ("npc.delta", "npc.state", "state.delta")
    ]


@pytest.mark.timeout(120)
async def test_an_outsider_is_told_the_same_whatever_is_said_in_private(tmp_path: Path) -> None:
    logs = [
        await evening(tmp_path / str(number), private, answers)
        for number, (private, answers) in enumerate(EVENINGS)
    ]
    first, second = map(told, logs)
    assert first == second
    for (private, answers), log in zip(EVENINGS, logs, strict=True):
        whole = json.dumps(log)
        for secret in (*private, *answers):
            assert secret not in whole or len(secret) < 8
        # That an NPC is busy, everybody sees, and neither with whom nor how it feels for that.
        states = [m["d"] for m in log if m["t"] == "npc.state"]
        assert all(state["attention"] in (None, "cy") for state in states)
        assert {state["mood"] for state in states} <= {"neutral", "afraid"}
        said = [m["d"]["player"] for m in log if m["t"] == "player.said"]
        assert set(said) == {"cy"}
        mine = [m["s"] for m in log if m.get("st") == "me" and m["t"] == "player.said"]
        assert set(mine) == {1}, "nothing of it leaves a gap in his own numbers"
