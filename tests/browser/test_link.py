"""The connection module of the pages, without a page: what a client library has to get right."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, WebSocketRoute

from gameserver.app import Application
from tests.browser.conftest import PATIENCE_MS, until

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

Message = dict[str, Any]
HELLO = {"t": "hello", "d": {"node": "one", "hb_ms": 20000}}


@pytest_asyncio.fixture(loop_scope="package")
async def page(browser: Browser, node: Application) -> AsyncIterator[Page]:
    """A page of the console's origin, with nothing on it."""
    context = await browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    await page.goto(f"http://127.0.0.1:{node.console_port}/icon.svg")
    yield page
    await context.close()


def welcome(session: str = "s-1", *, resumed: bool = False) -> Message:
    token = f"token of {session}"
    body = {"session": session, "resume_token": token, "caps": [], "resumed": resumed}
    return {"t": "welcome", "d": body}


async def test_memory_drops_what_is_old_doubled_or_of_a_former_owner(page: Page) -> None:
    taken = await page.evaluate("""async () => {
        const { Memory } = await import("/link/memory.js");
        const memory = new Memory();
        const joined = (s, ep) => ({ t: "scene.joined", st: "inn", s, ep, d: { turns: [] } });
        const event = (s, ep) => ({ t: "presence", st: "inn", s, ep, d: {} });
        const delta = (i, n, ep) => ({ t: "npc.delta", st: "inn", ep, d: { turn: "t", i, n } });
        return [
            joined(5, 2), event(6, 2), event(6, 2), event(5, 2), event(7, 1), event(7, 3),
            delta(0, 4, 3), delta(2, 2, 3), delta(4, 1, 2), delta(4, 1, 3), joined(5, 3),
        ].map((message) => memory.accept(message));
    }""")
    kept = [True, True, False, False, False, True, True, False, False, True, False]
    assert taken == kept


async def test_memory_asks_to_go_on_from_all_it_has(page: Page) -> None:
    wish = await page.evaluate("""async () => {
        const { Memory } = await import("/link/memory.js");
        const memory = new Memory();
        const nothing = memory.resume;
        memory.welcome({ session: "s-1", resume_token: "secret" });
        const of = (t, d, more = {}) => memory.accept({ t, st: "inn", ep: 4, d, ...more });
        of("scene.joined", { turns: [{ turn: "live", i: 0, n: 3 }] }, { s: 9 });
        of("npc.turn.start", { turn: "new" }, { s: 10 });
        of("npc.delta", { turn: "live", i: 3, n: 2, text: "" });
        of("state.delta", { rev: 57, items: [] });
        const before = memory.resume;
        of("scene.snapshot", { turns: [{ turn: "new", i: 0, n: 8 }] }, { s: 30 });
        return [nothing, before, memory.resume.turns];
    }""")
    cursor = {"st": "inn", "s": 10, "rev": 57, "ep": 4}
    turns = [{"turn": "live", "next_i": 5}, {"turn": "new", "next_i": 0}]
    before = {"session": "s-1", "token": "secret", "cursors": [cursor], "turns": turns}
    # A turn that a snapshot does not show has ended unheard.
    assert wish == [None, before, [{"turn": "new", "next_i": 8}]]


async def test_waits_double_within_bounds_and_a_wait_asked_for_counts_once(page: Page) -> None:
    waits = await page.evaluate("""async () => {
        const { Backoff } = await import("/link/backoff.js");
        const backoff = new Backoff(() => 0.5);
        const first = [1, 2, 3, 4, 5, 6, 7, 8].map(() => backoff.next());
        backoff.ask(4000);
        const asked = [backoff.next(), backoff.next()];
        backoff.reset();
        return [first, asked, backoff.next()];
    }""")
    first, asked, again = waits
    assert first == [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]
    assert asked == [4400, 30000]
    assert again == 500


async def test_a_replay_is_counted_until_all_streams_are_level(page: Page) -> None:
    figures = await page.evaluate("""async () => {
        const { Replay } = await import("/link/replay.js");
        const replay = new Replay([{ st: "inn" }, { st: "me" }], 700, 2);
        const count = (t, st, s, d = {}) => replay.count({ t, st, s, d });
        count("presence", "inn", 4); count("npc.delta", "inn", undefined, { n: 7 });
        count("npc.turn.end", "inn", 5); count("scene.synced", "inn", 5);
        count("npc.turn.sync", "inn", undefined, { n: 3 });
        count("presence", "inn", 6); count("npc.delta", "inn", undefined, { n: 2 });
        count("scene.snapshot", "me", 9, { gap: { from: 3, to: 9 } });
        const { events, chunks, skipped } = replay;
        return { events, chunks, skipped };
    }""")
    assert figures == {"events": 2, "chunks": 10, "skipped": 7}


#: Starts a client that joins on each new session, and keeps what happens in `window.told`.
START = """async (url) => {
    const { Client } = await import("/link/client.js");
    window.told = [];
    window.client = new Client({ url });
    client.addEventListener("state", ({ detail }) => told.push(detail.state));
    client.addEventListener("message", ({ detail }) => told.push(detail.t));
    client.addEventListener("ready", ({ detail: { resumed } }) => {
        if (resumed) return;
        client.command("scene.join", { scene: "inn" }).catch(({ code }) => told.push(code));
    });
    client.connect({ player: "ada", name: "Ada" });
}"""


class Nodes:
    """Stand-ins for nodes: each address answers by a script of its own, and keeps what it was sent.

    Attributes:
        heard: (address, message) in order.
    """

    def __init__(self) -> None:
        self.heard: list[tuple[str, Message]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self.answers: dict[str, Callable[[WebSocketRoute, Message], None]] = {}

    async def stand_in(self, page: Page) -> None:
        """Take over all connections of a page."""
        await page.route_web_socket(re.compile("node.test"), self._serve)

    def _serve(self, socket: WebSocketRoute) -> None:
        def receive(frame: str | bytes) -> None:
            message = msgspec.json.decode(frame)
            self.heard.append((socket.url, message))
            self.answers[socket.url](socket, message)

        socket.on_message(receive)
        say(socket, HELLO)

    def close(self, socket: WebSocketRoute, code: int) -> None:
        """Close a connection, soon."""
        task = asyncio.ensure_future(socket.close(code=code))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def sent(self, address: str, kind: str) -> list[Message]:
        """Payloads of the messages of a type that an address was sent."""
        return [m["d"] for url, m in self.heard if url == address and m["t"] == kind]


def say(socket: WebSocketRoute, message: Message) -> None:
    socket.send(msgspec.json.encode(message).decode())


def joined(message: Message) -> Message:
    return {
        "t": "scene.joined",
        "st": "inn",
        "s": 3,
        "ep": 1,
        "re": message["id"],
        "d": {"turns": []},
    }


async def test_a_join_that_is_answered_by_another_address_is_made_there(page: Page) -> None:
    nodes = Nodes()

    def first(socket: WebSocketRoute, message: Message) -> None:
        if message["t"] == "identify":
            say(socket, welcome())
        elif message["t"] == "scene.join":
            moved = {"url": "ws://two.node.test/", "ticket": "", "delay_ms": 0}
            say(socket, {"t": "scene.moved", "st": "inn", "re": message["id"], "d": moved})

    def second(socket: WebSocketRoute, message: Message) -> None:
        if message["t"] == "identify":
            say(socket, welcome("s-2"))
        elif message["t"] == "scene.join":
            say(socket, joined(message))

    nodes.answers = {"ws://one.node.test/": first, "ws://two.node.test/": second}
    await nodes.stand_in(page)
    await page.evaluate(START, "ws://one.node.test/")
    await until(page, "() => told.includes('scene.joined')")
    assert len(nodes.sent("ws://one.node.test/", "bye")) == 1  # its session is not left behind
    [identity] = nodes.sent("ws://two.node.test/", "identify")
    assert "resume" not in identity
    assert len(nodes.sent("ws://two.node.test/", "scene.join")) == 1


async def test_a_session_that_moves_goes_on_at_the_other_address_but_never_without_encryption(
    page: Page,
) -> None:
    nodes = Nodes()

    def serve(socket: WebSocketRoute, message: Message) -> None:
        if message["t"] == "identify":
            say(socket, welcome(resumed="resume" in message["d"]))
        elif message["t"] == "scene.join":
            say(socket, joined(message))
            where = {"url": "ws://plain.node.test/", "delay_ms": 0, "reason": "drain"}
            say(socket, {"t": "reconnect", "d": where})
            moved = {"url": "wss://two.node.test/", "ticket": "", "delay_ms": 0}
            say(socket, {"t": "scene.moved", "st": "inn", "d": moved})

    nodes.answers = dict.fromkeys(["wss://one.node.test/", "wss://two.node.test/"], serve)
    await nodes.stand_in(page)
    await page.evaluate(START, "wss://one.node.test/")
    await until(page, "() => told.filter((word) => word === 'welcome').length === 2")
    [identity] = nodes.sent("wss://two.node.test/", "identify")
    assert identity["resume"]["session"] == "s-1"
    assert identity["resume"]["cursors"] == [{"st": "inn", "s": 3}]
    assert not any(url.startswith("ws:") for url, _ in nodes.heard)


async def test_a_command_without_an_answer_is_sent_again_with_its_id(page: Page) -> None:
    nodes = Nodes()

    def serve(socket: WebSocketRoute, message: Message) -> None:
        resumed = "resume" in message["d"]
        if message["t"] == "identify":
            say(socket, welcome(resumed=resumed))
        elif len([m for _, m in nodes.heard if m["t"] == "scene.join"]) == 1:
            say(socket, {"t": "reconnect", "d": {"delay_ms": 0, "reason": "restart"}})
            nodes.close(socket, 1012)
        else:
            say(socket, joined(message))

    nodes.answers = {"ws://one.node.test/": serve}
    await nodes.stand_in(page)
    await page.evaluate(START, "ws://one.node.test/")
    await until(page, "() => told.includes('scene.joined')")
    first, second = [m for _, m in nodes.heard if m["t"] == "scene.join"]
    assert first == second


@pytest.mark.parametrize("code", [4400, 4401, 4403, 4409, 4426])
async def test_where_the_server_would_only_refuse_again_nobody_comes_back(
    page: Page, code: int
) -> None:
    nodes = Nodes()

    def serve(socket: WebSocketRoute, message: Message) -> None:
        body = {"code": "replaced", "msg": "no", "fatal": True}
        say(socket, {"t": "error", "d": body})
        nodes.close(socket, code)

    nodes.answers = {"ws://one.node.test/": serve}
    await nodes.stand_in(page)
    await page.evaluate(START, "ws://one.node.test/")
    await until(page, "() => told.includes('closed')")
    assert await page.evaluate("told") == ["connecting", "hello", "error", "closed"]
