"""Pictures of the console for the documents: `python -m benchmarks.screenshots`.

Starts a node with the shipped tavern, whose NPCs speak from a script, lets three players live
through an evening, and photographs the NPC page in a headless Chromium, on dark and on light
ground; then two more walk about the playground.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
from playwright.async_api import Browser, Page, async_playwright

from engine.weights.load import load_vocabulary
from gameserver.app import Application
from gameserver.packs import find_packs
from gameserver.settings import Settings
from gameserver.visitor import Visitor

SCENE = "gilded_griffin"
SIZE = (1480, 1600)
PLAYGROUND = (1440, 900)
#: Where two players stand for their picture, as shares of the stage from its top left corner.
STANDS = {"Robin": (0.5, 0.94), "Sam": (0.36, 0.86)}
#: What the NPCs say, in turn.
TALE = (
    "There is a green light in the old mill, love, and young Robin went up to look at it. He has "
    "not come back, and the ferry bell rings every night, though there is no bell on the water."
)
SCRIPT = (
    "Barley stew for two coppers, dear, and the bread comes with it.",
    "Bless you, love. It is not every guest who says so.",
    "Say that again and you can drink rainwater, dear.",
    "Dust and old blankets, dear. Only dust and old blankets.",
    "Where did you get that? That is Robin's. Sit down, love, sit down.",
    "Come closer. Edda did not drown by chance, dear, and I have her ledger to show for it.",
)


async def evening(url: str) -> AsyncIterator[None]:
    """What happens; each step is taken when the next one is asked for."""
    async with contextlib.AsyncExitStack() as doors:
        ada, bob, cleo = [
            await doors.enter_async_context(Visitor.connected(url, name))
            for name in ("Ada", "Bob", "Cleo")
        ]
        for visitor in (ada, bob, cleo):
            await visitor.join(SCENE, greet=False)
        await say(ada, "What is for supper?")
        yield
        await say(ada, "Thank you, that is the best stew on the Old Road.")
        yield
        await say(bob, "This is slop, you old hag.")
        yield
        await say(cleo, "What do you keep in room seven?")
        yield
        shown = {"name": "shows", "data": {"item": "whistle", "npc": "mira"}}
        await ada.command("world.event", shown)
        await say(ada, "I found this on Crow Hill.", to=["mira"])
        yield
        await say(ada, "What happened to Edda?", to=["mira"])
        yield


async def say(visitor: Visitor, text: str, **more: object) -> None:
    """One line to Mira, and all of her answer."""
    number = await visitor.command("say", {"npc": "mira", "text": text, **more})
    async for message in visitor.messages():
        if message.get("re") == number and message["t"] == "error":
            raise RuntimeError(message["d"]["msg"])
        if message["t"] == "npc.turn.end" and message["d"]["npc"] == "mira":
            return


@contextlib.asynccontextmanager
async def node(
    data: Path, folder: Path, lines: Sequence[str] = SCRIPT, step_ms: float = 1.0
) -> AsyncIterator[Application]:
    """A node on free ports whose NPCs say `lines`, spelt with the default model's vocabulary."""
    vocabulary = load_vocabulary("default", data_dir=data)
    script = folder / "script.json"
    script.write_text(json.dumps([vocabulary.tokenizer.encode(reply) for reply in lines]))
    settings = Settings(port=0, console_port=0, model=f"script:{script}")
    quick = msgspec.structs.replace(settings.engine, script_step_ms=step_ms)
    settings = msgspec.structs.replace(settings, engine=quick)
    started = Application(settings, data_dir=data, packs=find_packs(()), inspect=True)
    try:
        await started.start()
        yield started
    finally:
        await started.stop()


async def walk(page: Page, name: str) -> None:
    """Send a player to where it is to stand, and see it arrive."""
    stage = await page.locator("#stage").bounding_box()
    assert stage is not None
    across, down = STANDS[name]
    x, y = stage["x"] + stage["width"] * across, stage["y"] + stage["height"] * down
    await page.mouse.click(x, y)
    own = page.locator(".walker.own")
    async with asyncio.timeout(20):
        while True:
            box = await own.bounding_box()
            if box is not None and abs(box["x"] + box["width"] / 2 - x) < 3:
                return
            await asyncio.sleep(0.05)


async def playground(browser: Browser, address: str, out: Path) -> None:
    """Two players walk in one room, hear the same words, and one of them loses the line."""
    pages = {}
    for name in STANDS:
        context = await browser.new_context(
            viewport={"width": PLAYGROUND[0], "height": PLAYGROUND[1]},
            color_scheme="dark",
            reduced_motion="reduce",
        )
        page = pages[name] = await context.new_page()
        await page.goto(address)
        await page.fill("#name", name)
        await page.click("#door button")
        await page.wait_for_selector(".walker.own")
        await walk(page, name)
    robin, sam = pages.values()
    await sam.click(".events button:text-is('thunder')")
    await robin.fill("#text", "Any rumours?")
    await robin.press("#text", "Enter")
    speech = robin.locator(".line.npc.speaking .words", has_text="There is a green light")
    await speech.wait_for()
    await robin.click("#line button:text-is('Cut the line')")
    await robin.locator(".log", has_text="Resumed").wait_for()
    await robin.screenshot(path=out / "playground.png")
    print(out / "playground.png")


async def photograph(page: Page, file: Path) -> None:
    """The page as it is, once what it shows has settled."""
    await page.wait_for_selector(".relation >> nth=2")
    await page.wait_for_function("document.querySelectorAll('#talk li').length >= 12")
    await page.screenshot(path=file)
    print(file)


async def main(data: Path, out: Path) -> None:
    """Take all pictures."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        async with node(data, Path(folder)) as server, async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            steps = evening(f"ws://127.0.0.1:{server.game_port}")
            async for _ in steps:
                await asyncio.sleep(1.2)  # time passes between lines, which the curves show
                if server.game is None or server.game.gauges()["turns_started"] < len(SCRIPT):
                    continue
                for name, scheme in (("console-npc", "dark"), ("console-npc-light", "light")):
                    page = await browser.new_page(
                        viewport={"width": SIZE[0], "height": SIZE[1]},
                        color_scheme="dark" if scheme == "dark" else "light",
                        reduced_motion="reduce",
                    )
                    address = f"http://127.0.0.1:{server.console_port}/npcs.html"
                    await page.goto(f"{address}#{SCENE}/mira")
                    await photograph(page, out / f"{name}.png")
            async with node(data, Path(folder), [TALE], step_ms=60.0) as server:
                await playground(browser, f"http://127.0.0.1:{server.console_port}/", out)
            await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="where models are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(arguments.data, arguments.out))
