"""The NPC page: what a person sees who looks into the heads of a running scene."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from gameserver.app import Application
from gameserver.keys import Keys, key_line, new_key
from npc.memory.records import Owner
from tests.browser.conftest import PATIENCE_MS, REPLY, Visit
from tests.browser.test_playground import say
from tests.gameserver.node import node_on_script, running
from tests.gameserver.stage import write_pack
from tests.npc.memory.stage import known, remembering

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]
expect.set_options(timeout=PATIENCE_MS)


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def inspected(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Application]:
    """A node that keeps prompts."""
    folder = tmp_path_factory.mktemp("inspected")
    async with running(node_on_script(folder, [REPLY], step_ms=1, inspect=True)) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="package")
async def looks(browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context(
        viewport={"width": 1400, "height": 1000}, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    await context.close()
    assert errors == []


def address(node: Application, npc: str = "") -> str:
    return f"http://127.0.0.1:{node.console_port}/npcs.html{npc}"


async def enter(browser: Browser, node: Application, name: str, instance: str) -> Page:
    """A player's page in an instance of the tavern."""
    page = await browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    await page.goto(f"http://127.0.0.1:{node.console_port}/?instance={instance}")
    await page.fill("#name", name)
    await page.click("#door button")
    await page.wait_for_selector(".person")
    return page


async def test_one_of_several_games_can_be_chosen(
    browser: Browser, tmp_path: Path, looks: Page
) -> None:
    packs = [write_pack(tmp_path / name, id=name, title=f"The {name}") for name in ("inn", "hall")]
    (tmp_path / "keys").write_text(key_line("ops", "tr-ops"))
    tenants, auth = {"acme": {"scenes": ["inn"]}}, {"keys_file": str(tmp_path / "keys")}
    made = node_on_script(tmp_path, ["Yes."], packs=tuple(packs), tenants=tenants, auth=auth)
    async with running(made) as node:
        assert node.game is not None
        for pack in ("inn", "hall"):
            await node.game._world.open(pack, None)
        await looks.goto(address(node))
        scenes = looks.locator("#cast h2")
        await expect(scenes).to_have_count(2)
        await looks.get_by_label("Game").select_option("acme")
        await expect(scenes).to_have_text(["The inn"])
        await expect(looks.locator("#status")).to_have_text("Live")
        await looks.get_by_label("Game").select_option("house")
        await expect(scenes).to_have_text(["The hall"])


async def test_what_happens_shows_while_it_happens(
    browser: Browser, inspected: Application, looks: Page
) -> None:
    ada = await enter(browser, inspected, "<i>Ada", "live")
    await looks.goto(address(inspected, "#gilded_griffin.live/mira"))
    await expect(looks.locator("#name")).to_have_text("Mira")
    await expect(looks.locator("#prompt-none")).to_have_text(re.compile("No turn of theirs"))
    await say(ada, "Thank you, dear Mira!")
    relation = looks.locator(".relation", has_text="Ada")
    await expect(relation.locator("h4")).to_have_text("<i>Ada")
    trust = relation.get_by_role("meter", name="trust of")
    await expect(trust).to_have_attribute("aria-valuenow", "6")
    await expect(relation.locator(".tag", has_text="thanked")).to_be_visible()
    await expect(looks.locator("#mood-now")).to_have_text(re.compile("cheerful"))
    await expect(looks.locator("#mood-curve path.fall")).to_have_count(1)
    turn = looks.locator('details[data-part="turn"] pre')
    await expect(turn).to_contain_text("<i>Ada: Thank you, dear Mira!")
    await expect(turn.locator("mark").first).to_have_text(re.compile(r"^\(Mira feels: cheerful"))
    await expect(looks.locator("#talk li.own").last).to_contain_text("green light")
    assert await looks.locator("i", has_text="Ada").count() == 0
    await say(ada, "You hag.")
    await expect(looks.locator("#turns option")).to_have_count(2)
    await expect(turn).to_contain_text("You hag.")
    await ada.close()


async def test_npcs_are_chosen_by_keyboard_and_quests_are_drawn_in_the_page_s_colours(
    browser: Browser, inspected: Application, looks: Page
) -> None:
    ada = await enter(browser, inspected, "Ada", "keys")
    await looks.goto(address(inspected))
    harn = looks.locator('.npc[data-npc="gilded_griffin.keys/harn"]')
    await harn.focus()
    await looks.keyboard.press("Enter")
    await expect(looks.locator("#name")).to_have_text("Captain Harn")
    await expect(harn).to_have_attribute("aria-current", "true")
    await expect(harn).to_be_focused()
    await expect(looks.locator("#tags .quest_giver")).to_have_text("quest giver")
    await expect(looks.locator(".quest svg rect.now")).to_have_count(1)
    assert await looks.locator(".quest style, .quest [style]").count() == 0
    await ada.close()


async def test_memories_are_ranked_by_the_words_that_are_typed(
    browser: Browser, inspected: Application, looks: Page
) -> None:
    ada = await enter(browser, inspected, "Ada", "past")
    player = await ada.evaluate("sessionStorage.getItem('troupe.player')")
    await looks.goto(address(inspected, "#gilded_griffin.past/mira"))
    await say(ada, "Hello!")
    await expect(looks.locator(".relation")).to_have_count(1)
    before = inspected.memories
    async with remembering() as memories:
        inspected._memories = memories
        owner = Owner("gilded_griffin.past", "mira", player)
        known(memories._book, "Ada has a grey cat.", "Ada sells rope.", owner=owner)
        first = looks.locator("#memories li").first
        for words in ("Ada has a grey cat.", "Ada sells rope."):
            await looks.fill("#words", words)
            await expect(first.locator("p").first).to_have_text(words)
        inspected._memories = None
        await expect(looks.locator("#memory")).to_be_hidden()
        inspected._memories = before
    await ada.close()


async def test_a_node_that_keeps_no_prompts_says_so(
    visit: Visit, node: Application, looks: Page
) -> None:
    await visit("Ada", query="?instance=dark")
    await looks.goto(address(node, "#gilded_griffin.dark/mira"))
    await expect(looks.locator("#prompt-none")).to_have_text(re.compile("--inspect"))


async def test_the_page_asks_for_a_key_where_one_is_needed(
    inspected: Application, looks: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    key, file = new_key(), tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(key_line("ops", key))
    api = inspected._api
    before, api.keys._hashes = api.keys._hashes, Keys.load(str(file), None)._hashes
    try:
        await looks.goto(address(inspected))
        await expect(looks.locator("#door")).to_be_visible()
        await looks.fill("#key", "wrong")
        await looks.press("#key", "Enter")
        await expect(looks.locator("#door-text")).to_have_text("That key is not known here.")
        await looks.fill("#key", key)
        await looks.press("#key", "Enter")
        await expect(looks.locator("#status")).to_have_attribute("data-state", "live")
    finally:
        api.keys._hashes = before


async def test_the_page_is_readable_on_dark_and_light_ground(
    browser: Browser, inspected: Application
) -> None:
    """Text and ground differ by at least 4.5 to 1 (WCAG 2.2, 1.4.3)."""
    for scheme in ("dark", "light"):
        page = await browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
        await page.goto(address(inspected))
        ratios = await page.evaluate(CONTRASTS)
        assert min(ratios.values()) >= 4.5, (scheme, ratios)
        await page.close()


CONTRASTS = """() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue(name).trim();
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratios = {};
  for (const text of ["--text", "--soft", "--dim", "--gold", "--good", "--danger", "--whisper"]) {
    for (const ground of ["--ground", "--panel", "--panel-2"]) {
      const [low, high] = [light(text), light(ground)].sort((a, b) => a - b);
      ratios[`${text} on ${ground}`] = (high + 0.05) / (low + 0.05);
    }
  }
  return ratios;
}"""
