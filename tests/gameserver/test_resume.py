"""A lost connection is an interruption and not a reset."""

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

from gameserver.game import GameServer
from gameserver.http.metrics import COUNTERS
from tests.gameserver.player import Message, Player, guess
from tests.gameserver.stage import SCENE, serving, until
from tests.gameserver.wanderer import Wanderer

TEXT = "Once, when the river was low, a miller's girl counted every stone of the ford. " * 3


async def arrive(server: GameServer, name: str = "ann", framing: str = "npc.v1.json") -> Wanderer:
    """A wanderer who is in the scene."""
    wanderer = Wanderer(server, name, framing)
    await wanderer.connect()
    await wanderer.ask("scene.join", {"scene": SCENE})
    return wanderer


def line(text: str = "Hello?", npc: str = "mira") -> Message:
    return {"npc": npc, "text": text}


async def test_what_was_missed_comes_in_order_and_then_the_sentence_goes_on(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann, bob = await arrive(server), await Player.enter(server, "bob")
        ann.command("say", line())
        await ann.until("npc.delta", i=0)
        await ann.until("npc.delta")
        ann.drop()
        await bob.get("presence", changes=[_change("ann", "away")])
        await bob.ask("world.event", {"name": "thunder"})
        before = len(ann.log)
        await ann.connect()
        assert ann.welcome["resumed"] is True
        assert ann.welcome["resume_ms"] == 60_000
        assert "resume_miss" not in ann.welcome
        sync = await ann.until("npc.turn.sync")
        assert sync["d"]["i"] > 0
        await ann.until("npc.turn.end", text=TEXT)
        types = [m["t"] for m in ann.log[before:]]
        assert types[:2] == ["hello", "welcome"]
        synced = [n for n, t in enumerate(types) if t == "scene.synced"]
        assert len(synced) == 2  # the scene, and `me`
        seen = [(m["t"], m.get("d", {}).get("changes", [{}])[0].get("what")) for m in ann.log]
        missed = [kind for kind in seen if kind[0] in ("presence", "world.event")]
        assert missed[-3:] == [("presence", "away"), ("world.event", None), ("presence", "back")]
        await bob.get("presence", changes=[_change("ann", "back")])


async def test_a_turn_that_ended_meanwhile_comes_whole(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT, "Short."]) as server:
        ann, bob = await arrive(server), await Player.enter(server, "bob")
        ann.command("say", line())
        await ann.until("npc.delta", i=0)
        ann.drop()
        assert (await bob.get("npc.turn.end"))["d"]["text"] == TEXT
        assert (await bob.hear())["text"] == "Short."
        before = len(ann.log)
        await ann.connect()
        await ann.until("npc.turn.end", text="Short.")
        missed = [m["t"] for m in ann.log[before:] if m["t"].startswith("npc.")]
        # The rest of what was half heard; start and end alone of what was not heard at all.
        assert missed == ["npc.delta", "npc.turn.end", "npc.turn.start", "npc.turn.end"]


@pytest.mark.parametrize(
    "window", [{"window_events": 8}, {"window_bytes": 2000}, {"window_s": 0.05}]
)
async def test_beyond_the_window_a_snapshot_says_what_was_skipped(
    tmp_path: Path, window: Message
) -> None:
    async with serving(tmp_path, ["x"], flow=window) as server:
        ann, bob = await arrive(server), await Player.enter(server, "bob")
        await ann.until("presence")
        cursor = ann.cursors[SCENE]
        ann.drop()
        for _ in range(20):
            await bob.ask("world.event", {"name": "thunder"})
        await asyncio.sleep(0.06)
        await ann.connect()
        assert ann.welcome["resumed"] is True
        snapshot = await ann.until("scene.snapshot")
        assert snapshot["d"]["gap"] == {"from": cursor + 1, "to": snapshot["s"]}
        fresh = (await bob.ask("scene.join", {"scene": SCENE}))["d"]
        assert {k: v for k, v in snapshot["d"].items() if k != "gap"} == fresh


@pytest.mark.parametrize("cursor", ["none", None, 10_000])
async def test_without_a_usable_cursor_things_are_shown_as_they_stand(
    tmp_path: Path, cursor: int | str | None
) -> None:
    """None, not even an empty list of them, or one from somewhere else."""
    async with serving(tmp_path, ["x"]) as server:
        ann = await arrive(server)
        ann.drop()
        wish = ann.resume_wish()
        wish["cursors"] = [{"st": SCENE, "s": cursor}] if isinstance(cursor, int) else []
        if cursor is None:  # reflection serializers write null
            wish["cursors"] = wish["turns"] = None
        again = await Player.dial(server)
        await again.identify(resume=wish)
        snapshot = await again.get("scene.snapshot")
        assert "gap" not in snapshot["d"]
        assert [player["id"] for player in snapshot["d"]["players"]] == ["ann"]


async def test_a_first_whisper_that_was_missed_is_heard(tmp_path: Path) -> None:
    """Who has never got anything on `me` has no cursor there."""
    async with serving(tmp_path, ["x"]) as server:
        ann, bob = await arrive(server), await Player.enter(server, "bob")
        ann.drop()
        await bob.get("presence", changes=[_change("ann", "away")])
        await bob.ask("say", {"text": "psst", "to": ["ann"]})
        assert "me" not in ann.cursors
        await ann.connect()
        assert (await ann.until("player.said"))["st"] == "me"


async def test_commands_sent_again_run_once(tmp_path: Path) -> None:
    async with serving(tmp_path, ["Yes."]) as server:
        ann = await arrive(server)
        number = ann.command("say", line())
        await asyncio.sleep(0.02)
        ann.drop()  # before the answer was read
        await ann.connect()
        while number not in ann.answers:
            await ann.receive()
        await ann.until("npc.state", activity="idle")
        assert sum(e["t"] == "player.said" for e in ann.events.values()) == 1
        assert server.gauges()["turns_started"] == 1


async def test_a_token_opens_a_session_once_and_for_its_player_only(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"]) as server:
        ann = await arrive(server)
        wish = ann.resume_wish()
        ann.drop()
        await until(lambda: server.gauges()["sessions_away"] == 1)
        wrong = {**wish, "token": "x" * 43}
        for player, tried in (("eve", wish), ("eve", wrong), ("ann", wrong)):
            thief = await Player.dial(server, player)
            welcome = (await thief.identify(resume=tried))["d"]
            assert welcome["resumed"] is False
            assert welcome["resume_miss"]
            assert welcome["session"] != wish["session"]
            await thief.socket.close()
        assert server.gauges()["sessions_away"] == 1
        await ann.connect()
        assert ann.welcome["resumed"] is True
        assert ann.welcome["resume_token"] != wish["token"]
        used = await Player.dial(server)
        assert (await used.identify(resume=wish))["d"]["resumed"] is False
        assert (await ann.ask("heartbeat"))["t"] == "heartbeat.ack"


async def test_guessing_tokens_ends_and_never_hurts_the_owner(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], flow={"wrong_tokens": 3}) as server:
        ann = await arrive(server)
        wish = ann.resume_wish()
        ann.drop()
        await until(lambda: server.gauges()["sessions_away"] == 1)
        tries = [{**wish, "token": str(number)} for number in range(10)]
        await guess(server, "eve", tries, most=3)
        await ann.connect()
        assert ann.welcome["resumed"] is True


async def test_whoever_resumes_takes_over_and_the_other_one_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"]) as server:
        bob = await Player.enter(server, "bob")
        old = await Player.enter(server)
        welcome = next(m for m in old.log if m["t"] == "welcome")["d"]
        wish = {"session": welcome["session"], "token": welcome["resume_token"]}
        rivals = [await Player.dial(server) for _ in range(2)]
        welcomes = await asyncio.gather(*(rival.identify(resume=wish) for rival in rivals))
        assert sorted(w["d"]["resumed"] for w in welcomes) == [False, True]
        error = (await old.get("error"))["d"]
        assert (error["code"], error["fatal"]) == ("replaced", True)
        events = len(old.log)
        await bob.ask("world.event", {"name": "thunder"})
        assert await old.closed() == 4409
        assert len(old.log) == events  # nothing is told to both
        assert server.gauges()["sessions"] == 3
        changes = [m["d"]["changes"][0]["what"] for m in bob.log if m["t"] == "presence"]
        assert changes == ["join"]  # never away


@pytest.mark.parametrize("way", ["bye", "1000"])
async def test_who_says_goodbye_has_no_session_to_go_on_with(tmp_path: Path, way: str) -> None:
    async with serving(tmp_path, ["x"]) as server:
        ann = await Player.enter(server)
        welcome = next(m for m in ann.log if m["t"] == "welcome")["d"]
        if way == "bye":
            await ann.send("bye")
            assert await ann.closed() == 1000
        else:
            await ann.socket.close(1000)
        await until(lambda: server.gauges()["sessions"] == 0)
        again = await Player.dial(server)
        wish = {"session": welcome["session"], "token": welcome["resume_token"]}
        assert (await again.identify(resume=wish))["d"]["resume_miss"] == "the session is over"


async def test_after_the_grace_the_seat_is_free(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], flow={"resume_s": 0.1}) as server:
        bob, ann = await Player.enter(server, "bob"), await arrive(server)
        ann.drop()
        for what in ("join", "away", "leave"):
            await bob.get("presence", changes=[_change("ann", what)])
        assert server.gauges()["sessions"] == 1
        await ann.connect()
        assert ann.welcome["resumed"] is False


async def test_speech_that_nobody_hears_ends_and_lines_wait_for_their_player(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, [TEXT, "Second."], flow={"orphan_s": 0.05}) as server:
        ann = await arrive(server)
        await ann.ask("say", line())
        second = (await ann.ask("say", line("And?")))["d"]["msg"]
        await ann.until("npc.delta")
        ann.drop()
        await until(lambda: server.gauges().get("turns_ended_abandoned", 0) == 1)
        await until(lambda: server._engine.gauges()["running"] == 0)
        await asyncio.sleep(0.05)
        assert server.gauges()["lines_waiting"] == 1
        assert server.gauges()["turns_started"] == 1
        await ann.connect()
        end = await ann.until("npc.turn.end", status="abandoned")
        assert TEXT.startswith(end["d"]["text"])
        assert end["d"]["kept"] == end["d"]["n"]
        await ann.until("npc.turn.start", cause=[second])
        await ann.until("npc.turn.end", text="Second.")


async def test_a_reload_of_the_page_never_locks_its_player_out(tmp_path: Path) -> None:
    """It has forgotten its token: the seat that was left longest makes room."""
    async with serving(tmp_path, ["x"], limits={"sessions_per_player": 2}) as server:
        for visit in range(5):
            ann = Wanderer(server, "ann")
            await ann.connect()
            assert ann.welcome["resumed"] is False
            ann.drop()
            await until(lambda n=visit: server.gauges()["sessions_away"] == min(n + 1, 2))


async def test_a_paused_client_is_still_paused_when_it_is_back(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann, bob = await arrive(server), await Player.enter(server, "bob")
        await ann.ask("flow.set", {"pause": True})
        await bob.say()
        await ann.until("npc.turn.start")
        ann.drop()
        await ann.connect()
        await ann.until(
            "scene.synced",
        )
        assert not any(m["t"] in ("npc.delta", "npc.turn.sync") for m in ann.log)
        await ann.ask("flow.set", {"pause": False})
        await ann.until("npc.turn.end", text=TEXT)


async def test_a_seat_holds_on_to_no_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, [TEXT]) as server:
        ann = await arrive(server)
        await ann.ask("say", line())
        await ann.until("npc.delta")
        connections = [weakref.ref(connection) for connection in server._connections]
        ann.drop()
        await until(lambda: server.gauges()["connections"] == 0)
        assert server.gauges()["sessions_away"] == 1

        def gone() -> bool:
            gc.collect()
            return all(connection() is None for connection in connections)

        await until(gone, 5.0)


async def test_what_operators_watch_grows_only(tmp_path: Path) -> None:
    """What is a counter is shown as one, so that rates can be taken of it."""
    async with serving(tmp_path, ["x"], flow={"window_events": 1}) as server:
        ann, bob = await arrive(server), await Player.enter(server, "bob")
        thief = await Player.dial(server, "eve")
        await thief.identify(resume=ann.resume_wish())
        ann.drop()
        await bob.get("presence", changes=[_change("ann", "away")])
        await bob.ask("world.event", {"name": "thunder"})
        await ann.connect()
        await ann.until("scene.snapshot")
        for name in ("sessions_resumed", "resumes_refused", "snapshots_at_resume"):
            assert server.gauges()[name] == 1
            assert name in COUNTERS


async def test_an_expired_session_counts_as_no_guess(tmp_path: Path) -> None:
    """A client whose session is long over is let in as often as it comes."""
    async with serving(tmp_path, ["x"], flow={"wrong_tokens": 1}) as server:
        for _ in range(4):
            ann = await Player.dial(server)
            welcome = (await ann.identify(resume={"session": "s-0", "token": "old"}))["d"]
            assert (welcome["resumed"], bool(welcome["resume_miss"])) == (False, True)
            await ann.socket.close()


def _change(player: str, what: str) -> Message:
    return {"player": player, "what": what, "meta": {"name": player, "role": "player"}}
