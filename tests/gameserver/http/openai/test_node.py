"""The official client for JavaScript, unchanged."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gameserver.keys import Key, Keys, key_line
from tests.gameserver.http.openai.served import serving

SOURCE = Path(__file__).parent / "node"


@pytest.fixture(scope="session")
def visitor(cache_dir: Path) -> Path:
    """A folder with the script and the client, which npm fetches once."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not on this machine")
    folder = cache_dir / "openai-npm"
    shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
    if not (folder / "node_modules" / "openai").is_dir():
        command = (npm, "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock")
        fetched = subprocess.run(command, cwd=folder, capture_output=True, timeout=100, text=True)
        if fetched.returncode:
            pytest.skip(f"npm cannot fetch the client: {fetched.stderr[-200:]}")
    return folder


async def test_the_javascript_client_works_and_sees_its_own_errors(visitor: Path) -> None:
    call = '<tool_call>\n{"name": "leave", "arguments": {"where": "mill"}}\n</tool_call>'
    replies = ["The stew is hot.", "Grüße 🐉", call, "upon a time.", "A long farewell." * 50]
    name, digest = key_line("studio", "secret").split()
    async with serving(replies, keys=Keys({bytes.fromhex(digest): Key(name)})) as served:
        process = await asyncio.create_subprocess_exec(
            *("node", "visit.js", f"{served.url}/v1", "secret"),
            cwd=visitor,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, problems = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, problems.decode()
        seen = json.loads(out)
        gauges = await served.at_rest()
    assert seen == {
        "model": "script",
        "chat": ["The stew is hot.", "stop"],
        "streamed": "Grüße 🐉",
        "tokens": len("Grüße 🐉".encode()) + 1,
        "call": ["leave", {"where": "mill"}],
        "text": "upon a time.",
        "errors": [
            ["BadRequestError", 400, "temperature"],
            ["NotFoundError", 404, "model"],
            ["AuthenticationError", 401, None],
        ],
    }
    assert gauges["requests_cancelled"] == 1
    assert gauges["blocks_held"] == 0
