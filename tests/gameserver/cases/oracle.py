"""What no case may change, whoever misbehaves: the common oracle of `docs/session-cases.md`."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import until

_LOUD = ("warning", "error", "critical", "exception")


@dataclass(slots=True)
class Level:
    """What a node holds.

    Attributes:
        connections, handshakes, sessions: of the game server.
        tasks: of the event loop.
        files: open in this process, sockets of clients included.
    """

    connections: float
    handshakes: float
    sessions: float
    tasks: int
    files: int

    @classmethod
    def of(cls, server: GameServer) -> "Level":
        """The level at this moment."""
        gauges = server.gauges()
        return cls(
            gauges["connections"],
            gauges["handshakes"],
            gauges["sessions"],
            len(asyncio.all_tasks()),
            len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
        )

    def holds_at_most(self, other: "Level") -> bool:
        """Whether nothing was left behind since `other`."""
        return all(getattr(self, name) <= getattr(other, name) for name in self.__slots__)


@contextlib.asynccontextmanager
async def unharmed(
    server: GameServer,
    *,
    moved: dict[str, int],
    caplog: pytest.LogCaptureFixture,
    bad_clients: int = 1,
    away: int = 0,
) -> AsyncIterator[Player]:
    """A case, during which somebody in another scene hears an NPC speak; afterwards the process is
    up, that somebody has heard every word in order, nothing is left open, and the log was quiet.

    Args:
        moved: counters, and by how much at least they must have risen.
        bad_clients: each may cost one line of the log at warning or above.
        away: sessions that rightly wait for their players afterwards.
    """
    bystander = await Player.enter(server, "bystander", instance="elsewhere")
    await bystander.hear("Are you there?")
    before, counts = Level.of(server), dict(server.gauges())
    before.sessions += away
    caplog.set_level(logging.WARNING)
    with capture_logs() as lines:
        accepted = await bystander.say("Tell me while the others make trouble.")
        yield bystander
        start = await bystander.get("npc.turn.start", cause=[accepted["d"]["msg"]])
        end = (await bystander.get("npc.turn.end", turn=start["d"]["turn"]))["d"]
        assert end["status"] == "completed"
        assert bystander.heard(end["turn"]) == end["text"]
        numbers = [m["s"] for m in bystander.log if m.get("st") == bystander.stream and "s" in m]
        assert numbers == sorted(numbers)
        assert (await bystander.ask("heartbeat", {"n": 7}))["d"]["n"] == 7
        with contextlib.suppress(TimeoutError):
            await until(lambda: Level.of(server).holds_at_most(before))
        assert Level.of(server).holds_at_most(before), (before, Level.of(server))
    loud = [line for line in lines if line["log_level"] in _LOUD]
    assert len(loud) + len(caplog.records) <= bad_clients, (loud, caplog.records)
    assert "errors_internal" not in server.gauges()
    for name, least in moved.items():
        risen = server.gauges().get(name, 0) - counts.get(name, 0)
        assert risen >= least, f"{name} rose by {risen}"
    await bystander.socket.close()
