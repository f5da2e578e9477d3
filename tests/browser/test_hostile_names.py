"""Names that do harm: nothing of them runs, and no page is wider or less legible for one."""

import asyncio
from pathlib import Path

import pytest
import yaml
from playwright.async_api import Browser, Page, expect

from gameserver.app import Application
from tests.browser.conftest import PATIENCE_MS, REPLY
from tests.gameserver.node import node_on_script, running
from tests.gameserver.stage import write_pack

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]
expect.set_options(timeout=PATIENCE_MS)

SIZES = [(1280, 720), (390, 844)]
NAMES = {
    "markup": "<img src=x onerror=alert(1)>",
    "script": "</script><script>alert(1)</script>",
    "handler": "\"'><svg onload=alert(1)>",
    "template": "{{7*7}}${7*7}<%= 7 %>`",
    "long": "Wolfeschlegelsteinhausenbergerdorff" * 2,
    "wide": "﷽𒐫" * 20,
    "tall": "Z" + "\u0351\u036b" * 25,
    "backwards": "\u202egnp.exe\u202c",
    "unseen": "A\u200b\u200d\u2060\u00adb",
    "arabic": "\u0645\u064a\u0631\u0627",
}
#: Boxes with words that stick out of the page or of what cuts them off.
STICKING_OUT = """(name) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const out = [];
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.includes(name.slice(0, 9)) || !node.checkVisibility()) continue;
    if (node.closest(".bubble p, .unseen")) continue; // can be scrolled; is only read aloud
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const { left, right } = range.getBoundingClientRect();
    // The box, or one around it, must cut what is too long: with an ellipsis, not in mid-word.
    const box = node.closest("b, small, span, h1, h2, h4, p, label, button, dt, dd, li") ?? node;
    if (getComputedStyle(box).overflowX === "clip") continue; // one character can be that wide
    const cuts = [box, box.parentElement, box.parentElement?.parentElement].some((each) =>
      each && (getComputedStyle(each).textOverflow === "ellipsis"
        || getComputedStyle(each).webkitLineClamp !== "none"));
    const room = box.getBoundingClientRect();
    const beyond = right > innerWidth + 1 || right > room.right + 2 || left < room.left - 2;
    if (beyond && !cuts) out.push([box.tagName, box.className, box.id, left, right, room.right]);
  }
  return out;
}"""


async def inn(folder: Path, name: str) -> Application:
    """A node whose scene and NPCs bear a name, and say it."""
    pack = write_pack(folder / "pack", id="inn", title=name[:90])
    for file in (pack / "npcs").iterdir():
        person = yaml.safe_load(file.read_text("utf-8"))
        title = name[:64] if person["id"] == "mira" else person["name"]
        person |= {"name": title, "role": name[:80], "knows": [name], "greeting": name}
        file.write_text(yaml.safe_dump(person, allow_unicode=True), "utf-8")
    return node_on_script(folder, [REPLY], step_ms=1, packs=(pack,), inspect=True)


async def harmless(page: Page, name: str, ran: list[str]) -> None:
    """Nothing has run, and everything keeps to its room."""
    assert ran == []
    assert await page.locator("body script, body img:not(.scenery, .fire, .door img)").count() == 0
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert await page.evaluate(STICKING_OUT, name) == []


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
async def test_a_name_is_nothing_but_a_name(browser: Browser, tmp_path: Path, name: str) -> None:
    async with running(await inn(tmp_path, name)) as node:
        for width, height in SIZES:
            context = await browser.new_context(
                viewport={"width": width, "height": height}, reduced_motion="reduce"
            )
            context.set_default_timeout(PATIENCE_MS)
            page, ran = await context.new_page(), []  # type: tuple[Page, list[str]]
            page.on("dialog", lambda dialog, ran=ran: ran.append(dialog.message))
            page.on("pageerror", lambda error, ran=ran: ran.append(str(error)))
            here = f"http://127.0.0.1:{node.console_port}"
            await page.goto(f"{here}/?instance=s{width}")
            await page.fill("#name", name)
            await page.click("#door button")
            await page.wait_for_selector('#connection[data-state="open"]')
            await page.wait_for_selector(".person")
            await expect(page.locator("#lines .who").first).to_be_attached()
            await asyncio.sleep(0.1)
            await harmless(page, name, ran)
            await page.goto(f"{here}/npcs.html")
            await expect(page.locator("#status")).to_have_text("Live")
            await harmless(page, name, ran)
            await context.close()
