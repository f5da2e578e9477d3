"""The playground: what a person sees when they walk into the tavern."""

import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, Route, WebSocketRoute, expect

from gameserver.app import Application
from tests.browser.conftest import PATIENCE_MS, REPLY, Visit
from tests.gameserver.player import Player

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]
expect.set_options(timeout=PATIENCE_MS)


#: Players, wherever in the room they are.
PLAYERS = ".walker, .guest"


#: A point of an element that nothing else covers, as a script; null if there is none.
FREE_POINT = """(node) => {
    const box = node.getBoundingClientRect();
    for (let y = box.top + 4; y < box.bottom + 24; y += 4)
        for (let x = box.left + 4; x < box.right; x += 4)
            if (node.contains(document.elementFromPoint(x, y))) return [x, y];
    return null;
}"""


async def choose(page: Page, npc: str = "mira") -> None:
    """Choose somebody and walk up to them, as a person with a keyboard does: figures may hide one
    another."""
    await page.locator(f'.person[data-npc="{npc}"]').focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#addressee")).not_to_contain_text("walk up")


async def say(page: Page, text: str, npc: str = "mira") -> None:
    await choose(page, npc)
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def test_two_browsers_see_each_other_and_hear_the_same_words(visit: Visit) -> None:
    ada, bob = await visit("Ada", query="?instance=two"), await visit("Bob", query="?instance=two")
    await expect(ada.locator(PLAYERS)).to_have_text([re.compile("Ada"), re.compile("Bob")])
    await choose(bob)
    await say(ada, "Any rumours?")
    # It appears while it is spoken: over Mira's head, and on both pages.
    bubble = bob.locator('.bubble[data-npc="mira"]:not(.said)')
    await expect(bubble).to_contain_text("green light")
    for page in (ada, bob):
        line = page.locator(".line.npc:has(.ttft)").last
        await expect(line.locator(".words")).to_have_text(REPLY)
        await expect(line.locator(".ttft")).to_have_text(re.compile(r"first token \d+ ms"))
        await expect(line.locator(".cached")).to_have_text(re.compile(r"\d+/\d+ cached"))
    await expect(bob.locator(".line:not(.npc) .words")).to_have_text("Any rumours?")


async def test_interrupt_stops_the_speech_for_everybody(visit: Visit) -> None:
    ada, bob = (
        await visit("Ada", query="?instance=stop"),
        await visit("Bob", query="?instance=stop"),
    )
    await choose(bob)
    await say(ada, "Tell me a long story.")
    await expect(bob.locator(".bubble:not(.said)")).to_contain_text("There is")
    await bob.click("#interrupt")
    for page in (ada, bob):
        line = page.locator('.line[data-status="interrupted"] .words')
        await expect(line).to_contain_text("There is")
        assert REPLY.startswith(await line.inner_text())
        assert len(await line.inner_text()) < len(REPLY)
    assert await ada.locator('.line[data-status="interrupted"] .words').inner_text() == (
        await bob.locator('.line[data-status="interrupted"] .words').inner_text()
    )


async def test_a_whisper_stays_between_those_it_names(visit: Visit) -> None:
    ada = await visit("Ada", query="?instance=quiet")
    bob = await visit("Bob", query="?instance=quiet")
    eve = await visit("Eve", query="?instance=quiet")
    await expect(ada.locator(PLAYERS)).to_have_count(3)
    for page in (bob, eve):
        await choose(page)
    await ada.check("#whisper")
    await ada.click('#confidants button:text-is("Bob")')
    await say(ada, "What is in room seven?")
    for page in (ada, bob):
        await expect(page.locator(".line.npc:has(.whisper-tag):has(.ttft) .words")).to_have_text(
            REPLY
        )
    assert await eve.locator(".line:has(.whisper-tag)").count() == 0
    assert await eve.get_by_text("What is in room seven?").count() == 0


async def test_names_and_lines_are_text_never_markup(visit: Visit) -> None:
    name = "<b onclick=alert(1)>Mallory"
    page = await visit(name, query="?instance=markup")
    await expect(page.locator(".walker b")).to_have_text(f"{name} (you)")
    line = '<img src="x" onerror="document.title=1"><script>document.title=2</script>'
    await say(page, line)
    await expect(page.locator(".line.own .words")).to_have_text(line)
    assert await page.locator(".lines img, .lines script, .walkers b b").count() == 0
    assert "Troupe" in await page.title()


async def test_nobody_can_enter_before_the_house_is_found(visit: Visit) -> None:
    async def late(page: Page) -> None:
        async def answer(route: Route) -> None:
            assert await page.locator("#door button").is_disabled()
            await page.press("#name", "Enter")
            assert await page.locator("#door").is_visible()
            await route.continue_()

        await page.route("**/playground.json", answer)

    page = await visit("Ada", query="?instance=late", prepare=late)
    await expect(page.locator(PLAYERS)).to_have_count(1)


async def test_everything_works_from_the_keyboard(visit: Visit) -> None:
    page = await visit("Ada", query="?instance=keys")
    await page.keyboard.press("Alt+ArrowDown")
    second = page.locator(".person").nth(1)
    await expect(second).to_have_attribute("aria-checked", "true")
    await second.focus()
    await page.keyboard.press("ArrowLeft")
    await expect(page.locator(".person").nth(0)).to_be_focused()
    await expect(page.locator(".person").nth(0)).to_have_attribute("aria-checked", "true")
    await page.focus("#text")
    await page.keyboard.type("Good evening!")
    await page.keyboard.press("Enter")
    await expect(page.locator(".bubble:not(.said)")).to_contain_text("There is")
    await page.keyboard.press("Escape")
    await expect(page.locator('.line[data-status="interrupted"]')).to_have_count(1)


async def test_the_room_shows_everybody_and_who_has_a_quest(visit: Visit) -> None:
    page = await visit("Ada", query="?instance=room")
    names = await page.locator(".plate b").all_inner_texts()
    assert "Mira" in names
    assert len(set(names)) == len(names) >= 6
    giver = page.locator(".person:has(.quest)")
    await expect(giver).to_have_count(1)
    await expect(giver).to_have_attribute("aria-label", re.compile("has a quest"))
    drawings = await page.locator(".person .figure").evaluate_all(
        "all => all.map(f => f.innerHTML)"
    )
    assert len(set(drawings)) == len(drawings)


def tapped(sockets: list[WebSocketRoute]) -> Callable[[Page], Awaitable[None]]:
    """Prepares a page whose connections to the game pass through our hands, into `sockets`."""

    def through(socket: WebSocketRoute) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    async def prepare(page: Page) -> None:
        await page.route_web_socket(re.compile("/v1/ws"), through)

    return prepare


async def test_a_lost_connection_comes_back_by_itself_and_nothing_is_shown_twice(
    visit: Visit,
) -> None:
    sockets: list[WebSocketRoute] = []
    page = await visit("Ada", query="?instance=lost", prepare=tapped(sockets))
    await say(page, "Any rumours?")
    await expect(page.locator(".line.npc:has(.ttft) .words")).to_have_text(REPLY)
    await sockets[0].close(code=4441, reason="stalled")
    await expect(page.locator("#connection")).not_to_have_attribute("data-state", "open")
    await expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    assert len(sockets) == 2
    await say(page, "Say that again?")
    await expect(page.locator(".line.npc:has(.ttft) .words")).to_have_text([REPLY, REPLY])
    await expect(page.locator(".line.own .words")).to_have_text(["Any rumours?", "Say that again?"])


async def test_a_connection_lost_in_mid_sentence_goes_on_there_and_the_page_says_so(
    visit: Visit,
) -> None:
    sockets: list[WebSocketRoute] = []
    page = await visit("Ada", query="?instance=cut", prepare=tapped(sockets))
    await say(page, "Any rumours?")
    speech = page.locator(".line.npc.speaking .words")
    await expect(speech).to_contain_text("There is a green light")
    await sockets[0].close(code=4441, reason="stalled")
    await expect(page.locator(".note")).to_contain_text(["mid-sentence"])
    await expect(page.locator(".line.npc:has(.ttft) .words")).to_have_text([REPLY])
    await expect(page.locator(".line.npc .ending")).to_have_count(0)
    await expect(page.locator(".line.own .words")).to_have_text(["Any rumours?"])
    assert len(sockets) == 2


@pytest.mark.parametrize(("width", "height"), [(390, 844), (768, 1024), (1920, 1080)])
async def test_nothing_is_out_of_reach_on_any_screen(visit: Visit, width: int, height: int) -> None:
    page = await visit("Ada", width=width, height=height, query="?instance=small")
    overflow = "document.documentElement.scrollWidth > innerWidth"
    assert not await page.evaluate(overflow)
    for wanted in ("#text", "#send", "#connection", *(".person",)):
        box = await page.locator(wanted).first.bounding_box()
        assert box is not None
        assert box["x"] >= -1
        assert box["x"] + box["width"] <= width + 1
        assert box["y"] + box["height"] <= height + 1
    for person in await page.locator(".person").all():
        point = await person.evaluate(FREE_POINT)
        assert point is not None, f"{await person.get_attribute('data-npc')} is hidden"
        await page.mouse.click(*point)
        await expect(person).to_have_attribute("aria-checked", "true")


async def test_what_npcs_do_and_where_quests_are_is_shown(visit: Visit, node: Application) -> None:
    page = await visit("Ada", query="?instance=quest")
    assert node.game is not None
    bob = await Player.enter(node.game, "bob", scene="gilded_griffin", instance="quest")
    await bob.ask("world.event", {"name": "quest_accepted"})
    notes = page.locator(".note")
    await expect(notes.filter(has_text="The Light in the Mill: Find Robin")).to_have_count(1)
    await expect(notes.filter(has_text="Captain Harn: give item (lantern)")).to_have_count(1)
    await bob.ask("world.event", {"name": "robin_abandoned"})
    await expect(notes.filter(has_text="You get 5 silver.")).to_have_count(1)
    await bob.socket.close()
