"""Browsers that visit a whole node, in one event loop with it."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from playwright._impl._driver import compute_driver_executable
from playwright.async_api import Browser, Page, async_playwright

from gameserver.app import Application
from tests.gameserver.node import node_on_script, running

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
#: Longest wait for anything on a page, in ms.
PATIENCE_MS = 10_000
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

#: What the scripted NPCs say: greetings come from the scene, these from the "model", in turn.
REPLY = (
    "There is a green light in the old mill, love, and young Wim went up to look at it. He has "
    "not come back, and the ferry bell rings every night, though there is no bell on the water. If "
    "I were you I would ask the captain by the door, and I would not go up there alone."
)

#: Opens the page as somebody and walks in: `await visit("Ada")`.
Visit = Callable[..., Awaitable[Page]]


async def until(page: Page, true: str, argument: object = None) -> None:
    """Wait until a function of the page returns something true. (Playwright's own way needs `eval`,
    which the pages' security policy forbids.)"""
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while not await page.evaluate(true, argument):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True, scope="session")
def _browsers_can_run() -> None:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    driver = subprocess.run(
        [*compute_driver_executable(), "--version"], capture_output=True, text=True
    )
    if driver.returncode != 0:
        pytest.skip(f"Playwright's driver does not start: {driver.stderr.strip()}")


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def node(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Application]:
    async with running(node_on_script(tmp_path_factory.mktemp("node"), [REPLY], step_ms=4)) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="package")
async def visit(browser: Browser, node: Application) -> AsyncIterator[Visit]:
    contexts = []

    async def walk_in(
        name: str,
        *,
        width: int = 1280,
        height: int = 800,
        query: str = "",
        prepare: Callable[[Page], Awaitable[None]] | None = None,
    ) -> Page:
        context = await browser.new_context(
            viewport={"width": width, "height": height}, reduced_motion="reduce"
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        if prepare is not None:
            await prepare(page)
        await page.goto(f"http://127.0.0.1:{node.console_port}/{query}")
        await page.fill("#name", name)
        await page.click("#door button")
        await page.wait_for_selector('#connection[data-state="open"]')
        await page.wait_for_selector(".person")
        return page

    errors: list[str] = []
    yield walk_in
    for context in contexts:
        await context.close()
    assert errors == []
