"""Cases 12, 13, 16 and 21: lines that go silent, threads that sleep, windows that pass, storms."""

import asyncio
import time
from pathlib import Path

import pytest

from gameserver.connection import Connection
from gameserver.game import GameServer
from tests.gameserver.cases.oracle import unharmed
from tests.gameserver.player import Player
from tests.gameserver.proxy import Proxy
from tests.gameserver.raw import CLOSE, TEXT, RawClient, upgrade_request
from tests.gameserver.stage import SCENE, serving, until
from tests.gameserver.wanderer import Lost, Wanderer

WORDS = "Once, when the river was low, a miller's girl counted every stone of the ford. " * 3


def connection_of(server: GameServer, player: str) -> Connection:
    """The connection on which somebody plays."""
    return next(c for c in server._connections if c._session and c._session.player == player)


@pytest.mark.parametrize("speaking", [False, True])
async def test_a_line_that_goes_silent_leaves_its_player_away_and_able_to_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, speaking: bool
) -> None:
    async with serving(tmp_path, [WORDS], step_ms=1.0) as server:
        bob = await Player.enter(server, "bob")
        line = await Proxy(server.port).start()
        ann = Wanderer(line, "ann")  # type: ignore[arg-type]
        async with unharmed(server, moved={"closes_4440": 1}, caplog=caplog, away=1, bad_clients=0):
            await ann.connect()
            await ann.ask("scene.join", {"scene": SCENE})
            await bob.get("presence")
            if speaking:
                await ann.ask("say", {"npc": "mira", "text": "Well?"})
                await ann.until("npc.delta")
            line.open = False
            here, now = connection_of(server, "ann"), time.monotonic()
            here.check(now + 16)  # a ping, which is lost
            here.check(now + 16 + 44)
            assert server.gauges().get("closes_4440", 0) == 0
            here.check(now + 16 + 46)
            away = (await bob.get("presence"))["d"]["changes"][0]
            assert (away["player"], away["what"]) == ("ann", "away")
            ann.drop()
            await line.stop()
        ann.server = server
        await ann.connect()
        assert ann.welcome["resumed"] is True
        if speaking:
            while not ann.ended:
                await ann.receive()
            end = (await bob.get("npc.turn.end"))["d"]
            assert ann.ended == {end["turn"]: end["text"]}
        ann.drop()


async def test_a_game_that_loads_a_level_stays_and_one_that_never_wakes_may_resume(
    server: GameServer,
) -> None:
    """Pings are answered by the game's own thread, which is busy for half a minute, or for ever."""
    loading, gone = await Player.enter(server, "loading"), Wanderer(server, "gone")
    await gone.connect()
    for name in ("loading", "gone"):
        socket = connection_of(server, name)._socket
        now = time.monotonic()
        if name == "loading":
            loading.socket.transport.pause_reading()
        connection_of(server, name).check(now + 16)
        assert socket._pinged is not None
        connection_of(server, name).check(now + 16 + 30)
        if name == "loading":
            loading.socket.transport.resume_reading()
            await until(lambda s=socket: s._pinged is None)
        connection_of(server, name).check(now + 16 + 46)
    assert (await loading.ask("heartbeat", {"n": 1}))["d"]["n"] == 1
    assert gone._raw is not None
    texts = []
    while (arrived := await gone._raw.frame())[0] != CLOSE:
        if arrived[0] == TEXT:
            texts.append(arrived[1])
    assert b'"heartbeat_lost"' in texts[-1]
    assert arrived[1][:2] == (4440).to_bytes(2, "big")
    gone.drop()
    assert server.gauges()["closes_4440"] == 1
    await gone.connect()
    assert gone.welcome["resumed"] is True
    gone.drop()


async def test_who_misses_more_than_the_window_is_shown_the_scene_and_goes_on(
    tmp_path: Path,
) -> None:
    """1,500 events, with the window as it is by default: 1,024 of them."""
    async with serving(tmp_path, [WORDS], limits={"messages_burst": 5000}) as server:
        bob, ann = await Player.enter(server, "bob"), Wanderer(server, "ann")
        await ann.connect()
        await ann.ask("scene.join", {"scene": SCENE})
        cursor = ann.cursors[SCENE]
        ann.drop()
        await bob.get("presence", changes=[_away("ann")])
        for _ in range(1500):
            await bob.ask("world.event", {"name": "thunder"})
        await ann.connect()
        assert ann.welcome["resumed"] is True
        shown = await ann.until("scene.snapshot")
        assert shown["d"]["gap"] == {"from": cursor + 1, "to": shown["s"]}
        assert shown["s"] - cursor > 1500
        assert (await ann.ask("world.event", {"name": "thunder"}))["t"] == "ack"
        await ann.until("world.event")  # numbered right after the snapshot, or `Wanderer` fails
        ann.drop()


async def test_a_storm_is_weathered_and_those_without_manners_do_not_starve_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All connections are lost at once; all come back at once, and some hammer at the door."""
    most = 8
    guards = {"handshakes": most, "handshake_age_s": 0.05}
    async with serving(tmp_path, [WORDS], guards=guards) as server:
        crowd = [Wanderer(server, f"p{number}") for number in range(30)]
        peak = 0

        async def arrive(wanderer: Wanderer) -> None:
            wait = 0.01
            while True:
                try:
                    await wanderer.connect()
                except (AssertionError, Lost, OSError, asyncio.IncompleteReadError):
                    wanderer.drop()  # 503: it waits, each time longer
                    await asyncio.sleep(wait)
                    wait = min(wait * 2, 0.2)
                else:
                    return

        async def hammer() -> None:
            while True:
                client = await RawClient.connect(server)
                try:
                    client.writer.write(upgrade_request())
                    await client.head()
                except (ConnectionError, asyncio.IncompleteReadError):
                    await asyncio.sleep(0)
                finally:
                    client.drop()

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, len(server._handshakes))
                await asyncio.sleep(0)

        await asyncio.gather(*map(arrive, crowd))
        for wanderer in crowd:
            await wanderer.ask("scene.join", {"scene": SCENE})
        moved = {"sessions_resumed": 30, "handshakes_refused": 1}
        async with unharmed(server, moved=moved, caplog=caplog, bad_clients=0):
            for connection in list(server._connections):
                if connection._session and connection._session.player != "bystander":
                    connection._socket.transport.abort()
            await until(lambda: server.gauges()["sessions_away"] == 30)
            for wanderer in crowd:
                wanderer.drop()
            rude = [asyncio.create_task(work()) for work in (watch, *[hammer] * 6)]
            async with asyncio.timeout(60):
                await asyncio.gather(*map(arrive, crowd))
            for task in rude:
                task.cancel()
            await asyncio.gather(*rude, return_exceptions=True)
            assert all(wanderer.welcome["resumed"] for wanderer in crowd)
        assert 0 < peak <= most
        for wanderer in crowd:
            wanderer.drop()


def _away(player: str) -> dict[str, object]:
    return {"player": player, "what": "away", "meta": {"name": player, "role": "player"}}
