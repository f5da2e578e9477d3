"""Cut: the test of lines lost at any byte, with many more seeds than in `make test`."""

import asyncio
import re
import sys

from benchmarks.load.part import Promise, Result, Stage

_TEST = "tests/gameserver/test_cut_anywhere.py"


async def run(stage: Stage, seeds: int) -> Result:
    """Run it so many times, each time otherwise, in both framings."""
    stage.say(f"{seeds} seeds")
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--seeds", str(seeds), _TEST]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate())[0].decode(errors="replace")
    failed = re.findall(r"^FAILED (\S+)", output, re.MULTILINE)
    bad = len(failed) or int(process.returncode != 0)
    promise = Promise("seeds with a gap, a double or another text", bad, 0.0)
    return Result("cut", {"seeds": seeds}, [promise], [], [f"Failed: {name}." for name in failed])
