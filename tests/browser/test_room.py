"""The room: players walk in it together, and things in it are the same for all."""

import re

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.conftest import PATIENCE_MS, REPLY, Visit, until
from tests.browser.test_playground import choose, say

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]
expect.set_options(timeout=PATIENCE_MS)


#: Whether a walker has left the part of the room in which everybody comes in.
AWAY_FROM_THE_DOOR = """(node) => {
  const room = document.querySelector("#stage").getBoundingClientRect();
  return node.getBoundingClientRect().left > room.left + room.width * 0.25;
}"""


async def left_of(walker: Locator) -> float:
    """How far from the left a walker stands, in px."""
    return float(await walker.evaluate("(node) => node.getBoundingClientRect().left"))


async def walk(page: Page, key: str, walker: Locator, *, at_least: float) -> None:
    """Hold a key until somebody has gone that many px."""
    before = await left_of(walker)
    await page.focus("#stage")
    await page.keyboard.down(key)
    moved = f"(node) => Math.abs(node.getBoundingClientRect().left - {before}) >= {at_least}"
    handle = await walker.element_handle()
    await until(page, moved, handle)
    await page.keyboard.up(key)


async def test_two_players_walk_and_each_sees_the_other_move(visit: Visit) -> None:
    ada, bob = (
        await visit("Ada", query="?instance=walk"),
        await visit("Bob", query="?instance=walk"),
    )
    for page in (ada, bob):
        await expect(page.locator(".walker")).to_have_count(2)
    for mover, watcher, name, key in ((ada, bob, "Ada", "d"), (bob, ada, "Bob", "ArrowRight")):
        seen = watcher.locator(".walker", has_text=name)
        before = await left_of(seen)
        await walk(mover, key, mover.locator(".walker.own"), at_least=80)
        # Where the mover has come to rest, the watcher sees it in the end.
        place = await left_of(mover.locator(".walker.own"))
        there = f"(node) => Math.abs(node.getBoundingClientRect().left - {place}) < 1"
        await until(watcher, there, await seen.element_handle())
        assert place > before


async def test_a_press_on_the_floor_walks_there(visit: Visit) -> None:
    page = await visit("Ada", query="?instance=click")
    own = page.locator(".walker.own")
    await expect(own).to_have_count(1)
    box = await page.locator("#stage").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 0.2, box["y"] + box["height"] - 8
    await page.mouse.click(x, y)
    arrived = f"""(node) => {{
        const box = node.getBoundingClientRect();
        return Math.abs(box.left + box.width / 2 - {x}) < 2;
    }}"""
    await until(page, arrived, await own.element_handle())


async def test_letters_that_are_typed_move_nobody(visit: Visit) -> None:
    page = await visit("Ada", query="?instance=type")
    own = page.locator(".walker.own")
    await expect(own).to_have_count(1)
    before = await left_of(own)
    await page.focus("#text")
    await page.keyboard.type("was wadded")
    assert await page.input_value("#text") == "was wadded"
    assert await left_of(own) == before


async def test_only_those_in_earshot_hear_a_line(visit: Visit) -> None:
    ada = await visit("Ada", query="?instance=far")
    bob = await visit("Bob", query="?instance=far")
    await expect(ada.locator(".walker")).to_have_count(2)
    await expect(ada.locator("#earshot")).to_be_visible()
    await expect(ada.locator('.person[data-npc="mira"]')).to_have_class(
        re.compile("out-of-earshot")
    )
    await say(ada, "Any rumours?")  # Ada walks up to Mira, Bob stays by the door
    await expect(ada.locator(".line.npc:has(.ttft) .words")).to_have_text(REPLY)
    await expect(ada.locator(".line.own .near-tag")).to_have_count(1)
    await choose(bob)
    await say(bob, "What did she say?")
    await expect(bob.locator(".line.npc:has(.ttft) .words")).to_have_text(REPLY)
    assert await bob.get_by_text("Any rumours?").count() == 0
    await expect(ada.get_by_text("What did she say?").first).to_be_attached()


async def test_a_door_that_one_opens_stands_open_for_all(visit: Visit) -> None:
    ada = await visit("Ada", query="?instance=door")
    bob = await visit("Bob", query="?instance=door")
    door = '.thing[data-entity="front_door"]'
    await expect(bob.locator(door)).to_have_attribute("aria-label", re.compile("shut"))
    await ada.locator(door).focus()
    await ada.keyboard.press("Enter")
    for page in (ada, bob):
        await expect(page.locator(door)).to_have_attribute("aria-label", re.compile("door, open"))
        await expect(page.locator("#world .things")).to_contain_text("front dooropen")


async def test_what_may_not_be_changed_is_said_in_words(visit: Visit) -> None:
    page = await visit("Ada", query="?instance=locked")
    room = page.locator("#world .things li", has_text="room seven")
    await room.locator("button").click()
    await expect(page.locator("#hint")).to_be_visible()
    await expect(room).to_contain_text("locked")


async def test_who_walks_up_to_the_same_person_stands_beside_those_who_are_there(
    visit: Visit,
) -> None:
    names = ("Ada", "Bob", "Cleo")
    pages = [await visit(name, query="?instance=elbows") for name in names]
    for page in pages:
        await expect(page.locator(".walker")).to_have_count(3)
    for name, page in zip(names, pages, strict=True):
        await choose(page)
        for watcher in pages:  # who comes next makes room for those they see
            seen = watcher.locator(".walker", has_text=name)
            await until(watcher, AWAY_FROM_THE_DOOR, await seen.element_handle())
    apart = """() => {
      const walkers = [...document.querySelectorAll(".walker")];
      const feet = walkers.map((node) => node.getBoundingClientRect());
      const far = (one, other) => Math.hypot(one.x - other.x, one.bottom - other.bottom) > 25;
      return feet.every((one, i) => feet.slice(i + 1).every((other) => far(one, other)));
    }"""
    await until(pages[0], apart)


async def test_a_second_player_walks_in_beside_the_first(visit: Visit) -> None:
    page = await visit("Ada", query="?instance=split")
    await page.click("#split")
    second = page.frame_locator("iframe")
    await expect(second.locator('#connection[data-state="open"]')).to_have_count(1)
    await expect(second.locator(".walker.own")).to_have_text("Second player (you)")
    await expect(page.locator(".walker")).to_have_count(2)
    await page.click("#split")
    await expect(page.locator("iframe")).to_have_count(0)
    await expect(page.locator(".walker")).to_have_count(1)
    await expect(page.locator(".note", has_text="Second player left")).to_have_count(1)


async def test_what_others_say_late_pulls_nobody_back(visit: Visit) -> None:
    page = await visit("Ada", query="?instance=echo")
    positions = await page.evaluate("""async () => {
      const { Steps } = await import("/room/steps.js");
      const view = { bounds: [[0, 0], [10, 10]], clamp: (pos) => pos, unproject: () => [0, 0] };
      const told = [], at = [];
      const on = { onStep: () => {}, onTell: (pos) => told.push(pos) };
      const steps = new Steps(document.createElement("div"), view, on);
      steps.place([0, 0]);
      const say = (pos) => { steps.place(pos); at.push(steps.pos); };
      await steps.walkTo([3, 0]);
      say([0, 0]); // from before the walk
      await steps.walkTo([6, 0]);
      say([0, 0]);
      say([3, 0]); // our own word, and not our last
      say([6, 0]);
      say([9, 9]); // somebody has moved us
      await steps.walkTo([1, 1]);
      say([5, 5]); // and does so again, before our word is back
      return at;
    }""")
    assert positions == [[3, 0], [6, 0], [6, 0], [6, 0], [9, 9], [5, 5]]
