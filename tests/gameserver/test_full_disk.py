"""A disk that is full: who wants something soon hears so, and nothing that was refused happens."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gameserver.stores import sqlite
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE
from tests.gameserver.test_restart import Crashing

WAIT_S = 0.2


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Crashing]:
    made = Crashing(tmp_path, ["The stew is hot."], store={"wait_s": WAIT_S})
    await made.start()
    yield made
    await made.stop()


@contextmanager
def full(monkeypatch: pytest.MonkeyPatch, node: Crashing) -> Iterator[None]:
    """The disk is full, and has been for longer than a moment."""

    def apply(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(sqlite, "_apply", apply)
        node.server._journal._kept_at = 0.0
        yield


async def test_the_first_command_is_refused_and_has_not_happened(
    node: Crashing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await Player.enter(node.server)
    await ann.hear("Hello?")
    await node.server._journal.settled()
    with full(monkeypatch, node):
        for _ in range(2):
            refused = await ann.say("Is it hot?")
            assert (refused["t"], refused["d"]["code"]) == ("error", "busy")
            assert refused["d"]["retry_ms"] > 0
        assert (await ann.ask("heartbeat"))["t"] == "heartbeat.ack"
    await node.server._journal.settled()
    assert (await ann.hear("Is it hot?"))["status"] == "completed"
    told = (await ann.ask("history.get", {"npc": "mira"}))["d"]["items"]
    assert [item["text"] for item in told].count("Is it hot?") == 1


async def test_who_comes_anew_and_who_joins_are_refused_too(
    node: Crashing, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await Player.dial(node.server, "bob")
    await bob.identify()
    await node.server._journal.settled()
    with full(monkeypatch, node):
        cid = await Player.dial(node.server, "cid")
        await cid.send("identify", {"player": "cid"})
        assert (await cid.get("error"))["d"]["code"] == "busy"
        assert (await bob.ask("scene.join", {"scene": SCENE}))["d"]["code"] == "busy"
    await node.server._journal.settled()
    assert (await bob.ask("scene.join", {"scene": SCENE}))["t"] == "scene.joined"
