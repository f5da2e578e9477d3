"""What the README shows works as it stands there."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from gameserver.app import Application
from gameserver.settings import Settings
from tests.browser.conftest import REPLY, Visit

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]
README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def block(language: str) -> str:
    """The first code block of a language."""
    match = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert match is not None
    return match[1]


async def test_the_python_client_prints_a_reply(node: Application) -> None:
    code = block("python").replace("8765", str(node.game_port))
    assert code.count("\n") <= 25
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output.decode().strip() == REPLY
    assert process.returncode == 0


async def test_the_javascript_client_logs_a_reply(visit: Visit, node: Application) -> None:
    code = block("js").replace("8765", str(node.game_port))
    page = await visit("Ada", query="?instance=readme")
    async with page.expect_console_message(lambda message: message.text == REPLY):
        await page.evaluate(f"() => {{ {code} }}")


async def test_the_settings_example_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "troupe.yaml"
    file.write_text(block("yaml"))
    assert Settings.load(file).engine.numerics == "exact"
