"""The terminal client says what happens in the room, and only that."""

import asyncio
import io
import json
import logging
import queue
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from websockets.asyncio.server import ServerConnection, serve

from gameserver.app import Application
from gameserver.talk import say_once, talk
from gameserver.visitor import Message, TalkError, Visitor
from tests.gameserver.node import node_on_script, running

REPLIES = ["A green light, dear.", "Sit by the fire and I will tell you about the bell.\x1b[2J"]


class Keyboard(io.StringIO):
    """Standard input that a test types into, line by line."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str | None] = queue.Queue()

    def type(self, line: str | None) -> None:
        self._lines.put(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines.get, None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _nothing_on_stdout_but_the_client() -> None:
    errors_only = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=errors_only)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Application]:
    async with running(node_on_script(tmp_path, REPLIES, step_ms=3)) as node:
        yield node


@pytest.fixture
def url(node: Application) -> str:
    return f"ws://127.0.0.1:{node.game_port}"


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Keyboard:
    keyboard = Keyboard()
    monkeypatch.setattr("sys.stdin", keyboard)
    return keyboard


async def test_once_prints_the_reply_and_nothing_else(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await say_once(url, None, "Ada", "Mira", "Any rumours?")
    assert capsys.readouterr().out == REPLIES[0] + "\n"


async def test_once_names_who_could_be_spoken_to(url: str) -> None:
    with pytest.raises(TalkError, match=r"nobody here is called Zork.*mira"):
        await say_once(url, None, "Ada", "Zork", "Hello")


async def test_who_fails_says_goodbye_and_holds_no_seat(url: str) -> None:
    with pytest.raises(TalkError):
        await say_once(url, None, "Ada", "Zork", "Hello")
    async with Visitor.connected(url, "Bob") as bob:
        room = await bob.join(None, greet=False)
    assert list(room.players.values()) == ["Bob"]


async def test_once_passes_on_a_refusal(url: str) -> None:
    with pytest.raises(TalkError, match="too long"):
        await say_once(url, None, "Ada", "mira", "x" * 2001)


async def test_a_scene_that_does_not_exist_is_an_error(url: str) -> None:
    with pytest.raises(TalkError, match=r"no scene 'atlantis'; there are gilded_griffin$"):
        await say_once(url, "atlantis", "Ada", "mira", "Hello")


async def test_a_conversation_streams_replies_with_their_cost(
    url: str, keyboard: Keyboard, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = asyncio.create_task(talk(url, None, "Ada"))
    shown = await _until(capsys, "Hang that coat")  # Mira greets
    assert "Captain Harn" in shown
    keyboard.type("@mira Any rumours?\n")
    shown = await _until(capsys, "prompt tokens cached")
    assert f"Mira: {REPLIES[0]}" in shown
    keyboard.type("@tobb\n")
    keyboard.type("What is that bell?\n")
    shown = await _until(capsys, "about the bell.")
    assert "You speak to Old Tobb." in shown
    assert "\x1b" not in shown  # nobody's words may steer the terminal
    keyboard.type("/quit\n")
    await asyncio.wait_for(conversation, 10)


async def test_two_terminals_hear_each_other(
    url: str, keyboard: Keyboard, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = asyncio.create_task(talk(url, None, "Ada"))
    await _until(capsys, "Hang that coat")
    async with Visitor.connected(url, "Bob") as bob:
        await bob.join(None, greet=False)
        await bob.command("say", {"npc": "mira", "text": "Any rumours?"})
        async for message in bob.messages():
            if message["t"] == "npc.turn.end":
                break
    shown = await _until(capsys, "Bob left")
    assert "Bob came in" in shown
    assert "Bob: Any rumours?" in shown
    assert f"Mira: {REPLIES[0]}" in shown
    keyboard.type(None)  # end of input
    await asyncio.wait_for(conversation, 10)


async def _until(capsys: pytest.CaptureFixture[str], wanted: str) -> str:
    """Everything shown until `wanted` is among it."""
    shown = ""
    async with asyncio.timeout(20):
        while wanted not in shown:
            await asyncio.sleep(0.01)
            shown += capsys.readouterr().out
    return shown


class Elsewhere:
    """The doors of nodes that do not have the scene: each sends who comes to the next one.

    Attributes:
        identities: what was shown at each of them.
    """

    def __init__(self, tickets: list[str]) -> None:
        self.identities: list[Message] = []
        self._tickets = tickets
        self.next_url = ""

    async def answer(self, socket: ServerConnection) -> None:
        await self._tell(socket, "hello", {"hb_ms": 60_000})
        async for frame in socket:
            message = json.loads(frame)
            if message["t"] == "identify":
                self.identities.append(message["d"])
                await self._tell(socket, "welcome", {"scenes": [{"id": "gilded_griffin"}]})
            elif message["t"] == "scene.join":
                ticket = self._tickets[len(self.identities) - 1]
                last = len(self.identities) == len(self._tickets)
                moved = {"url": self.next_url if last else "", "ticket": ticket, "delay_ms": 5}
                await self._tell(socket, "scene.moved", moved, re=message["id"])

    async def _tell(self, socket: ServerConnection, kind: str, d: Message, **more: int) -> None:
        await socket.send(json.dumps({"t": kind, **more, "d": d}))


async def test_it_goes_where_the_scene_is(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    doors = Elsewhere(["once", ""])
    doors.next_url = url
    async with serve(doors.answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await say_once(f"ws://127.0.0.1:{port}", None, "Ada", "mira", "What is that light?")
    assert capsys.readouterr().out == f"{REPLIES[0]}\n"
    first, second = doors.identities
    assert first["player"] == second["player"]
    assert (first["auth"], second["auth"]) == (
        {"kind": "none"},
        {"kind": "ticket", "token": "once"},
    )


async def test_nodes_that_send_it_around_are_not_believed_for_ever() -> None:
    doors = Elsewhere([""] * 99)
    async with serve(doors.answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TalkError, match="nodes in a row"):
            await say_once(f"ws://127.0.0.1:{port}", None, "Ada", "mira", "Hello?")
    assert len(doors.identities) == 8
