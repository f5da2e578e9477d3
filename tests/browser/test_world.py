"""The world panel: events, what NPCs do, quests; and texts from outside, which nobody trusts."""

import re
from typing import Any

import msgspec
import pytest
from playwright.async_api import Page, WebSocket, WebSocketRoute, expect

from gameserver.app import Application
from tests.browser.conftest import PATIENCE_MS, Visit, until
from tests.browser.test_playground import tapped
from tests.gameserver.player import Player

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]
expect.set_options(timeout=PATIENCE_MS)

HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


async def test_an_event_that_one_raises_is_seen_by_all(visit: Visit) -> None:
    ada, bob = await visit("Ada", query="?instance=ev"), await visit("Bob", query="?instance=ev")
    await ada.fill("#event-data", '{"loud": true}')
    await ada.click(".events button:text-is('thunder')")
    for page in (ada, bob):
        entry = page.locator(".feed .event", has_text="thunder")
        await expect(entry).to_contain_text('{"loud":true}')
        await expect(entry).to_contain_text("from player")


async def test_data_that_is_no_json_is_explained_and_not_sent(visit: Visit) -> None:
    page = await visit("Ada", query="?instance=json")
    await page.fill("#event-data", "{loud")
    await page.click(".events button:text-is('thunder')")
    problem = "() => document.querySelector('#event-data').validationMessage"
    await until(page, problem)
    assert "no JSON" in await page.evaluate(problem)
    await page.fill("#event-data", "")
    await page.click(".events button:text-is('bell rings')")
    await expect(page.locator(".feed .event")).to_have_text(re.compile("bell rings"))


def sent_frames(page: Page) -> list[dict[str, Any]]:
    """All that the page sends from now on."""
    sent: list[dict[str, Any]] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: sent.append(msgspec.json.decode(frame)))

    page.on("websocket", listen)
    return sent


@pytest.mark.parametrize(
    ("answer", "verdict", "ok"), [("Let it happen", "done", True), ("Refuse", "refused", False)]
)
async def test_the_player_decides_what_becomes_of_an_action(
    visit: Visit, answer: str, verdict: str, ok: bool
) -> None:
    sent: list[dict[str, Any]] = []

    async def listen(page: Page) -> None:
        nonlocal sent
        sent = sent_frames(page)

    page = await visit("Ada", query=f"?instance=act-{verdict}", prepare=listen)
    await page.click(".events button:text-is('quest accepted')")
    action = page.locator(".feed .action", has_text="Captain Harn give item (lantern)")
    await action.locator(f"button:text-is('{answer}')").click()
    await expect(action.locator(".verdict")).to_have_text(verdict)
    await expect(action.locator("button")).to_have_count(0)
    [result] = [frame["d"] for frame in sent if frame["t"] == "action.result"]
    assert result["ok"] is ok
    await expect(page.locator(".quests")).to_contain_text("Find Robin in the old mill")


async def test_quests_are_shown_to_those_who_come_later(visit: Visit, node: Application) -> None:
    assert node.game is not None
    bob = await Player.enter(node.game, "bob", scene="gilded_griffin", instance="later")
    await bob.ask("world.event", {"name": "quest_accepted"})
    page = await visit("Ada", query="?instance=later")
    await expect(page.locator(".quests .tag")).to_have_text("searching")
    await bob.socket.close()


async def test_nothing_from_outside_becomes_markup(visit: Visit) -> None:
    sockets: list[WebSocketRoute] = []
    page = await visit("Ada", query="?instance=xss", prepare=tapped(sockets))
    stream = "gilded_griffin.xss"
    meta = {"name": HOSTILE, "role": "player"}
    change = {"player": "mallory", "what": "join", "meta": meta}
    said = {"turn": "t-x", "npc": "mira", "i": 0, "n": 1, "text": HOSTILE}
    stamp = {"h": 2**52, "o": HOSTILE}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("presence", {"changes": [change]}),
        ("state.delta", {"rev": 10**6, "items": [
            {"e": "mallory", "k": "pos", "v": [8, 8], **stamp},
            {"e": "lantern", "k": HOSTILE, "v": HOSTILE, **stamp},
        ]}),
        ("player.said", {"msg": "m-x", "player": "mallory", "npc": "mira", "text": HOSTILE}),
        ("npc.turn.sync", said),
        ("npc.action", {"turn": "t-x", "action": "a-x", "npc": HOSTILE, "name": HOSTILE,
                        "args": {"__proto__": HOSTILE}, "at_i": 0, "player": None}),
        ("npc.aside", {"turn": "t-x", "npc": "mira", "kind": "x", "text": HOSTILE, "at_i": 0}),
        ("world.event", {"name": HOSTILE, "data": {HOSTILE: 1}, "src": HOSTILE, "state": True}),
        ("quest.update", {"quest": "__proto__", "title": HOSTILE, "stage": HOSTILE,
                          "journal": HOSTILE, "ending": "",
                          "rewards": [{"item": HOSTILE, "count": 1}]}),
        ("scene.meta", {"rev": 10**6, "title": HOSTILE, "weather": HOSTILE, "time": HOSTILE}),
        ("notice", {"code": "degraded", "data": {"msg": HOSTILE}}),
        ("error", {"code": "constructor", "msg": HOSTILE, "fatal": False}),
        ("reconnect", {"delay_ms": 20000, "reason": HOSTILE}),
        ("__proto__", {}),
        ("constructor", {}),
    ]  # fmt: skip
    for kind, body in bodies:
        sockets[0].send(msgspec.json.encode({"t": kind, "st": stream, "d": body}).decode())
    await expect(page.locator(".log")).to_contain_text("<img")
    for place in ("#scene-title", ".walkers", ".bubbles", "#lines", ".feed", ".quests", "#hint"):
        await expect(page.locator(place)).to_contain_text("<img src=x")
    await expect(page.locator("#world .things")).to_contain_text("<img src=x")
    assert await page.locator("img:not(.scenery, .fire, .door img), body script").count() == 0
    assert "broken" not in (await page.title()).split("<")[0]
    assert (await page.title()).startswith("<img")


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1440, 900), (1920, 1080)])
async def test_no_row_of_the_world_is_cut(visit: Visit, width: int, height: int) -> None:
    page = await visit("Ada", width=width, height=height, query=f"?instance=rows{width}")
    await expect(page.locator("#world .things li")).not_to_have_count(0)
    await expect(page.locator("#world .quests li")).to_have_count(1)
    cut = await page.evaluate("""() => {
      const room = document.querySelector("#world").getBoundingClientRect();
      return [...document.querySelectorAll("#world li, #world button, #world label")]
        .filter((row) => !row.closest(".feed"))
        .filter((row) => row.getBoundingClientRect().bottom > room.bottom
          || row.scrollWidth > row.parentElement.clientWidth)
        .map((row) => row.textContent);
    }""")
    assert cut == []
    boxes = page.locator("#world .columns > div")
    assert (
        await boxes.evaluate_all("(all) => all.filter((b) => b.scrollHeight > b.clientHeight)")
        == []
    )
