"""A server that ends without a word and comes back: its players go on, with no gap and no double,
and everything they were told had been accepted is there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api import AsyncEngine
from gameserver.game import GameServer
from gameserver.stores.sqlite import SqliteStore
from gameserver.stores.store import Holding, StoreDown
from npc.cast import Cast
from tests.gameserver.player import Player, guess
from tests.gameserver.stage import SCENE, byte_model, settings_with, until, write_pack
from tests.gameserver.wanderer import Lost, Wanderer

REPLIES = ["The bridge is gone. Nobody leaves tonight.", "The stew is hot.", "Mind the cat."]
QUICK = {"checkpoint_ms": 1}


class Crashing:
    """A node on a data folder that can be ended as `kill -9` would: nothing more of it reaches the
    store or a client from one moment to the next.

    Attributes:
        server: the running one.
    """

    def __init__(self, folder: Path, replies: Sequence[str], **sections: Any) -> None:
        self._folder = folder
        self._replies = replies
        self._settings = settings_with(**sections)
        self._pack = write_pack(folder / "pack")
        self.server: GameServer
        self._store: SqliteStore
        self._engine: AsyncEngine

    async def start(self, replies: Sequence[str] | None = None, step_ms: float = 2.0) -> GameServer:
        config = msgspec.structs.replace(self._settings.engine, script_step_ms=step_ms)
        self._engine = AsyncEngine(byte_model(replies or self._replies), config)
        await self._engine.start()
        cast = Cast(self._engine, self._settings.replies)
        await cast.open(self._pack)
        self._store = SqliteStore(self._folder)
        await self._store.open()
        self.server = GameServer(cast, self._settings, store=self._store)
        await self.server.start()
        return self.server

    async def crash(self) -> None:
        """What was not committed yet never is; connections break; nobody says goodbye."""
        await self._store.close()
        server = self.server
        assert server._server is not None
        for task in server._caring:
            task.cancel()
        if server._journal._task is not None:
            server._journal._task.cancel()
        server._server.close(close_connections=False)
        for socket in list(server._server.all_connections):  # those that still shake hands, too
            socket.transport.abort()
        await self._engine.stop()

    async def stop(self) -> None:
        await self.server.close()
        await self._store.close()
        await self._engine.stop()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Crashing]:
    made = Crashing(tmp_path, REPLIES, store=QUICK, flow={"delta_ms": 0})
    await made.start()
    yield made
    await made.stop()


async def back(wanderer: Wanderer, node: Crashing) -> None:
    """Connect to the server that runs now."""
    with contextlib.suppress(Lost):
        while True:
            await wanderer.receive()
    wanderer.server = node.server
    await wanderer.connect()


async def entered(node: Crashing, name: str = "ann") -> Wanderer:
    wanderer = Wanderer(node.server, name)
    await wanderer.connect()
    await wanderer.ask("scene.join", {"scene": SCENE})
    return wanderer


async def test_a_player_goes_on_at_the_server_that_came_back(node: Crashing) -> None:
    ann = await entered(node)
    said = await ann.ask("say", {"npc": "mira", "text": "Hello?"})
    await ann.until("npc.turn.end")
    last = ann.cursors[SCENE]
    await node.crash()
    await node.start(["I told you: it is gone."])
    await back(ann, node)
    assert ann.welcome["resumed"]
    await ann.ask("say", {"npc": "mira", "text": "And the bridge?"})
    await ann.until("npc.turn.end")
    assert list(ann.ended.values()) == [REPLIES[0], "I told you: it is gone."]
    assert ann.cursors[SCENE] > last
    told = (await ann.ask("history.get", {"npc": "mira"}))["d"]["items"]
    assert [item["text"] for item in told] == [
        "Hello?",
        REPLIES[0],
        "And the bridge?",
        "I told you: it is gone.",
    ]
    assert said["d"]["msg"] == told[0]["id"]


async def test_a_command_that_was_carried_out_is_not_carried_out_again(node: Crashing) -> None:
    ann = await entered(node)
    number = ann.command("say", {"npc": "mira", "text": "Hello?"})
    await ann.until("npc.turn.end")
    answer = ann.answers[number]
    await node.crash()
    await node.start()
    await back(ann, node)
    sent = {"t": "say", "id": number, "st": SCENE, "d": {"npc": "mira", "text": "Hello?"}}
    del ann.answers[number]
    ann._send(sent)
    while number not in ann.answers:
        await ann.receive()
    message = ann.answers[number]
    assert {**message, "ep": 0} == {**answer, "ep": 0}
    assert message["ep"] > answer["ep"], "or the client would drop it"
    assert len((await ann.ask("history.get", {"npc": "mira"}))["d"]["items"]) == 2


async def test_a_turn_in_mid_sentence_ends_once_with_the_words_that_are_known(
    node: Crashing,
) -> None:
    ann, bob = await entered(node), await entered(node, "bob")
    await ann.ask("say", {"npc": "mira", "text": "Hello?"})
    while "bridge" not in ann.texts.get(next(iter(ann.texts), ""), ("", 0))[0]:
        await ann.receive()
    heard = next(iter(ann.texts.values()))[0]
    await node.crash()
    await node.start()
    for player in (ann, bob):
        player.forgiving = True
        await back(player, node)
    end = await ann.until("npc.turn.end")
    assert (end["d"]["status"], end["d"]["reason"]) == ("abandoned", "owner_lost")
    assert REPLIES[0].startswith(end["d"]["text"])
    assert len(end["d"]["text"]) >= len(heard) - 8, "all but the last moment is known"
    assert (await bob.until("npc.turn.end"))["d"] == end["d"]
    items = (await ann.ask("history.get", {"npc": "mira"}))["d"]["items"]
    assert [item["text"] for item in items] == ["Hello?", end["d"]["text"]]
    for player in (ann, bob):
        ends = [m for m in player.events.values() if m["t"] == "npc.turn.end"]
        assert len(ends) == 1


async def test_a_turn_without_a_word_is_spoken_after_the_restart(tmp_path: Path) -> None:
    node = Crashing(tmp_path, REPLIES, store=QUICK)
    await node.start(step_ms=200.0)
    ann = await entered(node)
    await ann.ask("say", {"npc": "mira", "text": "Hello?"})
    await ann.until("npc.turn.start")
    await node.crash()
    await node.start()
    await back(ann, node)
    lost = await ann.until("npc.turn.end")
    assert (lost["d"]["status"], lost["d"]["text"]) == ("abandoned", "")
    end = await ann.until("npc.turn.end")
    assert (end["d"]["status"], end["d"]["text"]) == ("completed", REPLIES[0])
    starts = [m["d"] for m in ann.events.values() if m["t"] == "npc.turn.start"]
    assert starts[0]["cause"] == starts[1]["cause"]
    await node.stop()


async def test_lines_that_wait_are_answered_in_order(node: Crashing) -> None:
    ann, bob = await entered(node), await entered(node, "bob")
    await ann.ask("say", {"npc": "mira", "text": "One?"})
    await bob.ask("say", {"npc": "mira", "text": "Two?"})
    assert (await ann.ask("say", {"npc": "mira", "text": "Three?"}))["t"] == "say.accepted"
    await node.crash()
    await node.start(["Two it is.", "Three it is."])
    for player in (ann, bob):
        player.forgiving = True
        await back(player, node)
    await until_ended(ann, 3)
    assert list(ann.ended.values())[1:] == ["Two it is.", "Three it is."]


async def until_ended(player: Wanderer, count: int) -> None:
    while len(player.ended) < count:
        await player.receive()


async def test_who_does_not_come_back_leaves_and_its_line_with_it(tmp_path: Path) -> None:
    node = Crashing(tmp_path, REPLIES, store=QUICK, flow={"resume_s": 0.3})
    await node.start()
    ann, bob = await entered(node), await entered(node, "bob")
    await bob.ask("say", {"npc": "mira", "text": "One?"})
    await bob.ask("say", {"npc": "mira", "text": "Two?"})
    await node.crash()
    await node.start()
    ann.forgiving = True
    await back(ann, node)
    changes: list[str] = []
    while "leave" not in changes:
        message = await ann.until("presence")
        changes += [c["what"] for c in message["d"]["changes"] if c["player"] == "bob"]
    assert changes == ["away", "leave"]
    assert node.server.gauges()["lines_waiting"] == 0
    assert len(ann.ended) == 1
    await node.stop()


async def test_a_used_token_a_wrong_player_and_a_guess_open_nothing(node: Crashing) -> None:
    ann = await entered(node)
    old = ann.resume_wish()
    await node.crash()
    await node.start()
    thief = await Player.dial(node.server, "eve")
    assert not (await thief.identify(resume=old))["d"]["resumed"]
    guess = await Player.dial(node.server, "ann")
    assert not (await guess.identify(resume={**old, "token": "x" * 43}))["d"]["resumed"]
    assert "sessions_adopted" not in node.server.gauges()
    await back(ann, node)
    assert ann.welcome["resumed"]
    again = await Player.dial(node.server, "ann")
    assert not (await again.identify(resume=old))["d"]["resumed"]


@pytest.mark.parametrize("fails", ["scene.", "session."])
async def test_who_comes_back_while_the_store_stumbles_keeps_its_seat(
    node: Crashing, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked to try again, and then everything is as it was."""
    ann = await entered(node)
    await node.crash()
    await node.start()
    claim, failures = node._store.claim, [True]

    async def stumble(bucket: str, **wish: Any) -> Any:
        if bucket.startswith(fails) and failures:
            raise StoreDown("gone for a moment" * failures.pop())
        return await claim(bucket, **wish)

    monkeypatch.setattr(node._store, "claim", stumble)
    again = await Player.dial(node.server, "ann")
    wish = {"player": "ann", "auth": {"kind": "none"}, "resume": ann.resume_wish()}
    await again.send("identify", wish)
    await again.get("error", code="busy", fatal=True)
    assert await again.closed() == 4503  # of whom nothing is known yet, the connection ends
    again = await Player.dial(node.server, "ann")
    await again.send("identify", wish)
    assert (await again.get("welcome"))["d"]["resumed"]
    again._last_id = 50
    assert (await again.ask("say", {"npc": "mira", "text": "Still?"}, st=SCENE))["t"] == (
        "say.accepted"
    )


async def test_guesses_at_a_session_that_was_not_read_yet_count_as_well(tmp_path: Path) -> None:
    """Of the process before, or of another node: whoever guesses is told to stop, its owner is not
    harmed."""
    node = Crashing(tmp_path, REPLIES, store=QUICK, flow={"wrong_tokens": 3})
    await node.start()
    ann = await entered(node)
    await node.crash()
    await node.start()
    wish = ann.resume_wish()
    tries = [wish, *({**wish, "token": str(number)} for number in range(1, 5))]
    await guess(node.server, "eve", tries, most=3)
    assert node.server.gauges()["resumes_refused"] == 5
    await back(ann, node)
    assert ann.welcome["resumed"] is True
    await node.stop()


async def test_who_comes_back_when_there_is_no_room_for_its_scene_keeps_its_seat(
    tmp_path: Path,
) -> None:
    """It is asked to try again, and is not let in without its scene."""
    node = Crashing(tmp_path, REPLIES, store=QUICK, flow={"scenes": 2})
    await node.start()
    ann = Wanderer(node.server, "ann")
    await ann.connect()
    room = (await ann.ask("scene.join", {"scene": SCENE, "instance": "a"}))["st"]
    await node.crash()
    await node.start()
    others = []
    for name, instance in (("bob", "b"), ("cid", "c")):
        others.append(Wanderer(node.server, name))
        await others[-1].connect()
        await others[-1].ask("scene.join", {"scene": SCENE, "instance": instance})
    wish = {"player": "ann", "auth": {"kind": "none"}, "resume": ann.resume_wish()}
    again = await Player.dial(node.server, "ann")
    await again.send("identify", wish)
    await again.get("error", code="busy", fatal=False)
    others[0]._send({"t": "bye", "d": {}})
    with contextlib.suppress(Lost):
        while True:
            await others[0].receive()
    await again.send("identify", wish)
    assert (await again.get("welcome"))["d"]["resumed"]
    answer = await again.ask("history.get", {"npc": "mira"}, st=room, id=50)
    assert answer["t"] == "history"
    await node.stop()


async def test_a_restart_in_good_order_keeps_sessions_too(node: Crashing) -> None:
    ann = await entered(node)
    await ann.ask("say", {"npc": "mira", "text": "Hello?"})
    await ann.until("npc.turn.end")
    await node.stop()
    await node.start()
    await back(ann, node)
    assert ann.welcome["resumed"]
    assert ann.log[-1]["t"] != "error"
    assert len((await ann.ask("history.get", {"npc": "mira"}))["d"]["items"]) == 2


async def test_what_was_spent_of_budgets_stays_spent(node: Crashing) -> None:
    ann = await entered(node)
    await ann.ask("say", {"npc": "mira", "text": "Hello?"})
    await ann.until("npc.turn.end")
    spent = node.server.gauges()["budget_tokens_today"]
    assert spent > 0
    await until(lambda: node.server._spent == node.server.budgets.snapshot())
    await node.server._journal.settled()
    await node.crash()
    await node.start()
    assert node.server.gauges()["budget_tokens_today"] == spent


async def test_an_instance_that_nobody_comes_back_to_is_forgotten_and_the_scene_is_not(
    tmp_path: Path,
) -> None:
    node = Crashing(tmp_path, REPLIES, flow={"scene_idle_s": 0.2, "resume_s": 0.2})
    await node.start()
    ann = await Player.enter(node.server)
    await ann.hear()
    ann.stream = (await ann.ask("scene.join", {"scene": SCENE, "instance": "b"}))["st"]
    await ann.hear()
    await node.crash()
    await node.start()
    store = node._store
    await until_gone(store, f"scene.{SCENE}.b")
    await until_gone(store, f"session.{ann.log[1]['d']['session']}")
    assert await store.keys(f"scene.{SCENE}")
    await node.stop()


async def until_gone(store: SqliteStore, bucket: str) -> None:
    async with asyncio.timeout(10):
        while await store.keys(bucket):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_player_is_forgotten_in_scenes_that_run_and_in_those_that_do_not(
    node: Crashing,
) -> None:
    ann, bob = await Player.enter(node.server, "ann"), await Player.enter(node.server, "bob")
    secret = "xyzzy is the word"
    for stream in (SCENE, f"{SCENE}.b"):
        for player in (ann, bob):
            if stream != SCENE:
                await player.ask("scene.join", {"scene": SCENE, "instance": "b"}, st=stream)
            player.stream = stream
            await player.hear(f"{secret}, says {player.name}", npc="harn")
        await ann.ask("observe", {"text": f"{secret}, it is written", "who": "ann"})
    await node.crash()
    server = await node.start()
    await Player.enter(server, "cid")  # one of the two scenes runs again
    server.forget("ann")
    await server.forget_at_rest("ann")
    await server._journal.settled()
    for bucket in (f"scene.{SCENE}", f"scene.{SCENE}.b"):
        held = await node._store.claim(bucket, lease=False)
        assert isinstance(held, Holding)
        kept = [value for key, value in held.values.items() if not key.startswith("spoken/")]
        kept += [] if bucket == f"scene.{SCENE}" else [value for _, value in held.log]
        assert not [value for value in kept if secret.encode() in value and b"ann" in value]
        assert [value for value in kept if secret.encode() in value and b"bob" in value]


async def test_two_who_come_at_once_find_the_scene_opened_once(node: Crashing) -> None:
    players = [await entered(node, f"p{i}") for i in range(6)]
    await node.crash()
    await node.start()
    await asyncio.gather(*(back(player, node) for player in players))
    assert all(player.welcome["resumed"] for player in players)
    await until(lambda: node.server.gauges()["members"] == 6)
    epochs = {player._epochs[SCENE] for player in players}
    for player in players:
        await player.ask("world.event", {"name": "thunder"})
    assert len(epochs) == 1
