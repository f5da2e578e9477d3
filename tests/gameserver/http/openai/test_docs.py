"""The example in the documentation runs as it stands there."""

import asyncio
import re
import sys
from pathlib import Path

from tests.gameserver.http.openai.served import serving

PAGE = Path(__file__).parents[4] / "docs" / "openai.md"


async def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    async with serving(["I am Mira."]) as served:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code.replace("http://127.0.0.1:8780", served.url)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, problems = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, problems.decode()
    assert out.decode() == "I am Mira.\n0 prompt tokens were cached\n"
