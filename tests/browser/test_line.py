"""The line to the server: what is shown of it, how it survives a loss, and which key opens it."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, WebSocketRoute, expect

from gameserver.app import Application
from gameserver.keys import key_line, new_key
from tests.browser.conftest import PATIENCE_MS, REPLY, Visit
from tests.browser.test_playground import PLAYERS, choose, say, tapped
from tests.gameserver.node import node_on_script, running

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]
expect.set_options(timeout=PATIENCE_MS)


async def test_the_page_says_who_serves_and_how_well(visit: Visit) -> None:
    page = await visit("Ada", query="?instance=facts")
    await say(page, "Any rumours?")
    facts = page.locator("#line .facts div")
    for name, value in {
        "State": "Connected",
        "Node": "troupe",
        "Epoch": r"\d+",
        "Framing": r"npc\.v1\.json",
        "Round trip": r"\d+ ms",
        "First word": r"\d.* m?s \(\d.* m?s\)",
        "Speed": r"\d+ tokens/s",
    }.items():
        fact = facts.filter(has=page.locator(f'dt:text-is("{name}")'))
        await expect(fact.locator("dd")).to_have_text(re.compile(rf"^{value}$"))


async def test_a_line_that_is_cut_in_mid_sentence_loses_and_doubles_no_letter(visit: Visit) -> None:
    ada, bob = (
        await visit("Ada", query="?instance=cut2"),
        await visit("Bob", query="?instance=cut2"),
    )
    await choose(bob)
    await say(ada, "Any rumours?")
    await expect(ada.locator(".line.npc.speaking .words")).to_contain_text("There is")
    await ada.click("#line button:text-is('Cut the line')")
    await expect(ada.locator("#connection")).not_to_have_attribute("data-state", "open")
    for page in (ada, bob):
        line = page.locator(".line.npc:has(.ttft) .words")
        await expect(line).to_have_text([REPLY])
        await expect(page.locator(".bubble[data-npc=mira] p")).to_have_text(REPLY)
        await expect(page.locator(".line.npc .ending")).to_have_count(0)
    log = ada.locator("#line .log")
    await expect(log).to_contain_text("Cut in mid-sentence")
    await expect(log).to_contain_text(
        re.compile(r"Resumed after .*, \d+ tr.*: \d+ events? and [1-9]\d* chunks? of speech")
    )
    # The server has not noticed, so nobody was away.
    assert await bob.locator(".feed .away").count() == 0


async def test_others_see_who_hangs_up_and_who_is_back(visit: Visit) -> None:
    ada, bob = (
        await visit("Ada", query="?instance=hang"),
        await visit("Bob", query="?instance=hang"),
    )
    await expect(bob.locator(PLAYERS)).to_have_count(2)
    await ada.click("#line button:text-is('Hang up')")
    await expect(bob.locator(".walker.away")).to_have_text("Ada")
    await expect(bob.locator(".feed .away")).to_contain_text("Ada is away")
    await expect(ada.locator("#send")).to_be_disabled()
    await ada.click("#line button:text-is('Come back')")
    await expect(bob.locator(".feed .back")).to_contain_text("Ada is back")
    await expect(bob.locator(".walker.away")).to_have_count(0)
    await ada.click("#rename")
    await expect(bob.locator(".feed .leave")).to_contain_text("Ada left")
    await expect(bob.locator(PLAYERS)).to_have_count(1)


async def test_what_the_server_says_of_itself_is_shown_in_words(visit: Visit) -> None:
    sockets: list[WebSocketRoute] = []
    page = await visit("Ada", query="?instance=notice", prepare=tapped(sockets))
    notice = {"t": "notice", "d": {"code": "slow_consumer", "data": {}}}
    sockets[0].send(msgspec.json.encode(notice).decode())
    await expect(page.locator(".feed .notice")).to_contain_text("reads too slowly")
    body = {"code": "busy", "msg": "one at a time", "retry_ms": 1500, "fatal": False}
    sockets[0].send(msgspec.json.encode({"t": "error", "d": body}).decode())
    await expect(page.locator("#hint")).to_have_text(
        re.compile(r"^One at a time\. .*interrupt\. Try again in 2 s\.$")
    )


@pytest.fixture(scope="module")
def key() -> str:
    return new_key()


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory, key: str) -> AsyncIterator[Application]:
    """A node that lets in who has the key."""
    folder: Path = tmp_path_factory.mktemp("locked")
    (folder / "keys").write_text(key_line("game", key))
    node = node_on_script(folder, [REPLY])
    auth = msgspec.structs.replace(node.settings.auth, keys_file=str(folder / "keys"))
    node.settings = msgspec.structs.replace(node.settings, auth=auth)
    async with running(node) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="package")
async def stranger(browser: Browser, locked: Application) -> AsyncIterator[Page]:
    """A page before the door of that node."""
    context = await browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    await page.goto(f"http://127.0.0.1:{locked.console_port}/")
    await page.fill("#name", "Ada")
    await page.click("#door button")
    yield page
    await context.close()


async def test_a_server_that_wants_a_key_is_asked_in_again_with_one(
    stranger: Page, key: str
) -> None:
    trouble = stranger.locator("#door-trouble")
    await expect(trouble).to_have_text("This server asks for a key or a token.")
    await stranger.fill("#key", "not-the-key")
    await stranger.click("#door button")
    await expect(trouble).to_contain_text("That did not open the door")
    await expect(stranger.locator("#key")).to_have_value("")
    await stranger.fill("#key", key)
    await stranger.click("#door button")
    await expect(stranger.locator("#connection")).to_have_attribute("data-state", "open")
    await expect(stranger.locator("#door")).not_to_be_visible()
    # It is kept in this tab alone, and stands in no address.
    assert key not in stranger.url
    kept = "() => [localStorage, sessionStorage].map((storage) => Object.values(storage))"
    everywhere, here = await stranger.evaluate(kept)
    assert key in here
    assert key not in everywhere
    await stranger.reload()
    await stranger.click("#door button")
    await expect(stranger.locator("#connection")).to_have_attribute("data-state", "open")


async def test_a_signed_token_says_by_itself_who_plays(stranger: Page) -> None:
    said = await stranger.evaluate("""async () => {
        const { credential, playerOfToken } = await import("/panels/door.js");
        return ["", "plain-key", "e30.eyJzdWIiOiJhZGEifQ.c2ln", "not.a.token"].map((token) => {
            sessionStorage.setItem("troupe.play", token);
            return [credential().kind, playerOfToken()];
        });
    }""")
    assert said == [["none", None], ["key", None], ["jwt", "ada"], ["jwt", None]]
